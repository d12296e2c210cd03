#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "bench/bench.h"
#include "bench/call_timing.h"
#include "bench/device_text.h"
#include "kernels/case.h"
#include "plan/machine_rates.h"
#include "settings/runtime_settings.h"
#include "training/device_flag.h"

namespace megatron::bench {
namespace {

constexpr double kMemoryGoal = 80;

struct Row {
  std::string kernel, name;
  double seconds = 0;
  kernels::Cost cost;
  bool cold = true;
  bool only_reads = false;  // at least 90% of its bytes are reads
  double bandwidth = 0;     // of copies measured alongside, or of reads if the kernel only reads
  bool moved = false;       // rates of the copies vary too much to judge
  std::optional<double> in_cache;  // bytes/s with its data in cache
};

// Limits with which a kernel is compared: its floor is the longest of the times needed for its
// products, its bytes and its other arithmetic.
enum class Limit { peak, copy, read, arithmetic };

std::string_view name(Limit limit) {
  switch (limit) {
    case Limit::peak: return "peak";
    case Limit::copy: return "copy";
    case Limit::read: return "read";
    case Limit::arithmetic: return "arithmetic";
  }
  return "";
}

// The binding limit, the rate that was reached and its share of that limit.
struct Judged {
  Limit limit = Limit::copy;
  double rate = 0, percent = 0;
};

Judged judge(const Row& row, double peak) {
  if (row.cost.flops / peak > row.cost.bytes / row.bandwidth) {
    const double rate = row.cost.flops / row.seconds;
    return {Limit::peak, rate, 100 * rate / peak};
  }
  const double rate = row.cost.bytes / row.seconds;
  // The part of a call that fits the cache may run less efficiently than the whole, since its rows
  // are shorter.
  constexpr double kAlike = 1.25;
  if (row.in_cache && *row.in_cache < row.bandwidth && rate < kAlike * *row.in_cache)
    return {Limit::arithmetic, rate, 100 * rate / *row.in_cache};
  return {row.only_reads ? Limit::read : Limit::copy, rate, 100 * rate / row.bandwidth};
}

// Pairs that documents leave: cost.h counts them without window_start and window_end.
void count_seen_pairs(SeenCall& call) {
  const Tensor *begins = nullptr, *ends = nullptr, *keys = nullptr;
  for (const kernels::Operand& o : call.operands) {
    if (o.name == "q_positions") return;
    if (o.name == "window_start") begins = &o.tensor;
    if (o.name == "window_end") ends = &o.tensor;
    if (o.name == "k") keys = &o.tensor;
  }
  if (begins == nullptr || keys == nullptr) return;
  const int64_t length = begins->size(1);
  double seen = 0;
  const Tensor readable = on_host(*begins),
               readable_ends = ends == nullptr ? Tensor() : on_host(*ends);
  const std::span<const int32_t> values = readable.span<int32_t>();
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t last =
        ends == nullptr ? static_cast<int64_t>(i) % length
                        : std::min<int64_t>(readable_ends.span<int32_t>()[i], keys->size(1) - 1);
    seen += static_cast<double>(last - values[i] + 1);
  }
  const double counted = static_cast<double>(begins->size(0)) *
                         kernels::seen_pairs(length, keys->size(1), ends == nullptr);
  call.cost.flops *= seen / counted;
}

// True if a call writes less than a tenth of the bytes that it moves.
bool only_reads(const SeenCall& call) {
  double written = 0;
  for (const kernels::Operand& o : call.operands) {
    if (o.access != kernels::Access::read) written += static_cast<double>(o.tensor.bytes());
  }
  return 10 * written < call.cost.bytes;
}

// One measurement of a kernel, and the rate of the copies directly before and after it.
struct Turn {
  double seconds = 0, bandwidth = 0;
  double pace() const { return 1 / (seconds * bandwidth); }  // used to compare rounds
};

// Other programs may use the memory, so its bandwidth varies: the kernel alternates with copies
// (with reads if it only reads) for about `seconds`. Turns whose two copies disagree are discarded;
// until kMin agree, up to kTries times as many are made. The median turn is the result.
void measure_in_turns(ColdCall& call, double seconds, plan::BandwidthMeter& copies, Row& row) {
  constexpr size_t kTries = 4, kMin = 3;
  constexpr double kLongest = 0.01;
  std::vector<Turn> steady, others;
  const auto sample = [&] { return row.only_reads ? copies.sample_reading(1) : copies.sample(1); };
  double spent = 0, before = sample();
  const auto wanted = [&](size_t times) {
    return steady.size() + others.size() < times * kMin ||
           spent < static_cast<double>(times) * seconds;
  };
  while (wanted(1) || (steady.size() < kMin && wanted(kTries))) {
    const double begin = now_seconds();
    const double taken = call.mean_seconds(std::min(kLongest, seconds / kMin));
    spent += now_seconds() - begin;
    const double after = sample(), larger = std::max(before, after);
    const bool agree = std::min(before, after) >= (1 - plan::kNoisySpread) * larger;
    (agree ? steady : others).push_back({taken, (before + after) / 2});
    before = after;
  }
  row.moved = steady.size() < kMin;
  if (row.moved) steady.insert(steady.end(), others.begin(), others.end());
  const auto middle = steady.begin() + static_cast<std::ptrdiff_t>((steady.size() - 1) / 2);
  std::ranges::nth_element(steady, middle, {}, &Turn::pace);
  row.seconds = middle->seconds;
  row.bandwidth = middle->bandwidth;
}

Row measure(const kernels::Case& c, Runtime& runtime, double seconds,
            plan::BandwidthMeter& copies) {
  CallKeeper keeper([&](const kernels::Call& call) { return call.kernel == c.kernel; });
  const kernels::Case::Call call = c.make(runtime);
  runtime.stream().watch(&keeper);
  call.run(runtime.stream(), kernels::table(runtime.stream()));
  runtime.stream().watch(nullptr);
  SeenCall& seen = keeper.calls.back();  // a copy's Case restores its inputs with extra copies
  count_seen_pairs(seen);
  ColdCall cold(seen, runtime);
  Row row{.kernel = c.kernel, .name = c.name, .cost = seen.cost, .cold = cold.cold()};
  if (seen.cost.flops > 0) {
    row.bandwidth = copies.sample();
    row.seconds = cold.best_seconds(seconds);
    return row;
  }
  row.only_reads = runtime.device().is_host() && only_reads(seen);
  measure_in_turns(cold, seconds, copies, row);
  if (row.cold && runtime.device().is_host())
    row.in_cache = rate_in_cache(seen, runtime.device(), runtime.pool().size(), seconds);
  return row;
}

std::vector<kernels::Case> chosen(const std::string& kernel, bool bf16, bool gpu) {
  std::vector<kernels::Case> all = kernels::cases(), some;
  std::vector<std::string> names;
  for (kernels::Case& c : all) {
    const bool f16 = c.name.find(" f16") != std::string::npos;  // any operand is f16
    if (!c.real || f16 || (c.large && !gpu)) continue;
    if (std::ranges::find(names, c.kernel) == names.end()) names.push_back(c.kernel);
    if ((kernel.empty() || c.kernel == kernel) && (c.dtype == DType::bf16) == bf16)
      some.push_back(std::move(c));
  }
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  MG_CHECK(kernel.empty() || std::ranges::find(names, kernel) != names.end(),
           "--kernel is '{}'; kernels with cases of real sizes: {}", kernel, list);
  MG_CHECK(!some.empty(), "--kernel {} has no case of a real size in {}; {} --bf16", kernel,
           bf16 ? "bf16" : "fp32", bf16 ? "drop" : "add");
  return some;
}

constexpr std::string_view kAnotherOrder = ", any order";

// True if --allow-nondeterministic changes the call.
bool has_another_order(const kernels::Case& c, Device device) {
  const bool sums = c.kernel == "gemm" || c.kernel == "attention_backward";
  return device.kind == DeviceKind::cuda && sums;
}

std::string mark(const Row& row, const Judged& judged, bool bf16) {
  if (!row.cold) return "in cache";
  if (row.moved && judged.limit != Limit::peak) return "noisy";
  const double goal = judged.limit == Limit::peak ? (bf16 ? 65 : 75) : kMemoryGoal;
  return judged.percent < goal ? fmt::format("below {:.0f}%", goal) : "";
}

// Prints rows of the table as they are measured, so that none are lost if a kernel ends the run.
class Table {
 public:
  Table(const std::vector<kernels::Case>& cases, Device device, bool bf16) : bf16_(bf16) {
    for (const kernels::Case& c : cases) {
      kernel_ = std::max(kernel_, c.kernel.size());
      const size_t more = has_another_order(c, device) ? kAnotherOrder.size() : 0;
      name_ = std::max(name_, c.name.size() + more);
    }
    write(fmt::format("{:<{}}  {:<{}}  {:>9}  {:>16}  {:>5}", "kernel", kernel_, "case", name_,
                      "ms", "rate", "% of"));
  }

  // peak: the value measured so far.
  void add(const Row& row, double peak) const {
    const Judged j = judge(row, peak);
    write(fmt::format("{:<{}}  {:<{}}  {:>9.4f}  {:>8.1f} {:<7}  {:>5.1f} {}  {}", row.kernel,
                      kernel_, row.name, name_, row.seconds * 1e3, j.rate * 1e-9,
                      j.limit == Limit::peak ? "GFLOP/s" : "GB/s", j.percent,
                      megatron::bench::name(j.limit), mark(row, j, bf16_)));
  }

 private:
  static void write(std::string_view line) {
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
    std::fflush(stdout);
  }

  bool bf16_;
  size_t kernel_ = 6, name_ = 4;
};

Json as_json(const std::vector<Row>& rows, double peak, bool bf16) {
  Json::Array list;
  for (const Row& row : rows) {
    const Judged j = judge(row, peak);
    list.push_back(
        Json::Object{{"kernel", row.kernel},
                     {"case", row.name},
                     {"seconds", row.seconds},
                     {"flops", row.cost.flops},
                     {"bytes", row.cost.bytes},
                     {"limit", std::string(name(j.limit))},
                     {"bytes_per_second_in_cache", row.in_cache ? Json(*row.in_cache) : Json()},
                     {"percent", j.percent},
                     {"mark", mark(row, j, bf16)}});
  }
  return Json(std::move(list));
}

}  // namespace

int measure_kernels(const ReadFlags& read) {
  settings::RuntimeSettings runtime_settings;
  bool bf16 = false, json = false;
  std::string kernel;
  double seconds = 0.2;
  Fields f;
  f.add("kernel", &kernel, "measure only this kernel");
  f.add_switch("bf16", &bf16, true, "compute in bfloat16 instead of fp32");
  f.add("seconds", &seconds, "seconds to spend on each case");
  training::add_bench_device(f, runtime_settings);
  f.add("threads", &runtime_settings.threads, "CPU threads; default all cores");
  f.add_switch("json", &json, true, "print JSON");
  if (const auto code =
          read("megatron bench kernels [flags]",
               "Measures every kernel at the sizes of GPT-2 124M and of a 160M-parameter Llama, as "
               "a share of its limiting resource. 'peak': FLOPs of its GEMMs (for attention: of "
               "the unmasked pairs) against the GEMM peak measured so far; 'copy': the bytes of "
               "its tensors, each counted once, against the copy bandwidth, measured alternately "
               "with the kernel; 'read' (CPU only): for a kernel that writes almost nothing, "
               "against the read bandwidth; 'arithmetic' (CPU only): for a kernel that is slower "
               "than that bandwidth even with its data in cache, its rate there. Tensors rotate "
               "over 256 MB, so that caches are cold; a call with little data is marked 'in "
               "cache'. On a GPU, 'any order' means measured with --allow-nondeterministic.",
               f)) {
    return *code;
  }
  MG_CHECK(seconds > 0 && seconds <= 60, "--seconds is {}; it must lie in (0, 60]", seconds);
  runtime_settings.check();
  const std::vector<kernels::Case> list =
      chosen(kernel, bf16, runtime_settings.device_kind() == DeviceKind::cuda);
  training::begin_on_device(runtime_settings);
  const Device device = runtime_settings.device_value();
  Runtime runtime(device, runtime_settings.threads_per_rank());
  GpuWatch watch(device);
  plan::PeakMeter meter(runtime, bf16 ? DType::bf16 : DType::f32);
  plan::BandwidthMeter copies(runtime);
  copies.sample();
  std::vector<Row> rows;
  std::optional<Table> table;
  if (!json) table.emplace(list, device, bf16);
  size_t failed = 0;
  const auto measure_one = [&](const kernels::Case& c, std::string_view more) {
    try {
      Row row = measure(c, runtime, seconds, copies);
      row.name += more;
      if (table) table->add(row, meter.peak());
      rows.push_back(std::move(row));
    } catch (const Error& error) {
      ++failed;
      log::error("{}, {}{}: not measured: {}", c.kernel, c.name, more, error.what());
    }
  };
  for (size_t i = 0; i < list.size(); ++i) {
    if (i % 8 == 0) meter.sample(std::min(0.5, 5 * seconds));
    measure_one(list[i], "");
    if (has_another_order(list[i], device)) {
      runtime.stream().allow_nondeterministic(true);
      measure_one(list[i], kAnotherOrder);
      runtime.stream().allow_nondeterministic(false);
    }
    watch.look();
  }
  meter.sample(std::min(0.5, 5 * seconds));
  const double peak = meter.peak(), bandwidth = copies.best();
  const bool noisy = meter.spread() > plan::kNoisySpread;
  if (json) {
    fmt::print("{}\n", Json(Json::Object{{"device", device_text(device, runtime.pool().size())},
                                         {"threads", int64_t{runtime.pool().size()}},
                                         {"type", bf16 ? "bf16" : "fp32"},
                                         {"gemm_peak", peak},
                                         {"gemm_peak_spread", meter.spread()},
                                         {"copy_bandwidth", bandwidth},
                                         {"copy_bandwidth_spread", copies.spread()},
                                         {"read_bandwidth", copies.best_reading()},
                                         {"kernels", as_json(rows, peak, bf16)}})
                           .dump(1));
    return failed == 0 ? 0 : 1;
  }
  const double reading = copies.best_reading();
  fmt::print(
      "{} GEMM peak {:.1f} GFLOP/s{} (spread {:.0f}%), copy {:.1f} to {:.1f} GB/s (each kernel "
      "with those next to it){}, {}{}\n",
      bf16 ? "bf16" : "fp32", peak * 1e-9, data_sheet_share(device, meter.type(), peak),
      100 * meter.spread(), (1 - copies.spread()) * bandwidth * 1e-9, bandwidth * 1e-9,
      reading > 0 ? fmt::format(", reading up to {:.1f} GB/s", reading * 1e-9) : "",
      device_text(device, runtime.pool().size()),
      noisy ? "; the peak is noisy: do not rely on shares of it from this run" : "");
  if (const std::string clocks = watch.text(); !clocks.empty()) fmt::print("{}\n", clocks);
  std::fflush(stdout);  // before the device is destroyed
  return failed == 0 ? 0 : 1;
}

}  // namespace megatron::bench
