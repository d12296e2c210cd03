#include "bench/step_floor.h"

#include <fmt/core.h>

#include <algorithm>

#include "bench/call_timing.h"
#include "kernels/cpu/products/library_product.h"
#include "plan/machine_rates.h"
#include "plan/replay_memory.h"

namespace megatron::bench {
namespace {

using kernels::cpu::LibraryProduct;
using Order = LibraryProduct::Order;

constexpr double kGoal = 85;

// Seconds of one call, with operands at different addresses each time.
double own_seconds(const plan::WorkItem& item, Runtime& runtime, double seconds) {
  constexpr int64_t kColdBytes = int64_t{256} << 20;
  plan::ReplayMemory memory(runtime, kColdBytes);
  std::vector<std::vector<Tensor>> sets;
  for (int i = 0; i < 16; ++i) sets.push_back(memory.operands(item));
  return best_seconds(runtime, seconds,
                      [&](size_t turn) { item.again(sets[turn % sets.size()], runtime.stream()); });
}

class LibraryRates {
 public:
  LibraryRates(Runtime& runtime, double seconds) : runtime_(runtime), seconds_(seconds) {}

  // Fills plain, packed and transposed.
  void measure(const LibraryProduct& p, ProductRates& rates) {
    rates.plain = rate(p);
    LibraryProduct packed = p;
    packed.b = Order::packed;
    rates.packed = rate(packed);
    packed.a = Order::packed;
    rates.packed = std::max(rates.packed, rate(packed));
    for (const Order a : {Order::rows, Order::columns}) {
      for (const Order b : {Order::rows, Order::columns}) {
        if (a == p.a && b == p.b) continue;
        LibraryProduct other = p;
        other.a = a;
        other.b = b;
        rates.transposed = std::max(rates.transposed, rate(other));
      }
    }
    LibraryProduct swapped = p;
    std::swap(swapped.m, swapped.n);
    swapped.a = p.b == Order::rows ? Order::columns : Order::rows;
    swapped.b = p.a == Order::rows ? Order::columns : Order::rows;
    rates.transposed = std::max(rates.transposed, rate(swapped));
  }

 private:
  double rate(const LibraryProduct& p) {
    double best = 0;
    const double flops = 2.0 * static_cast<double>(p.batch * p.m) * static_cast<double>(p.n) *
                         static_cast<double>(p.k);
    kernels::cpu::with_library_product(
        p, runtime_.pool().size(), runtime_.arena(MemoryClass::scratch),
        [&](const std::function<void()>& run) {
          best = flops / best_seconds(runtime_, seconds_, [&](size_t) { run(); });
        });
    return best;
  }

  Runtime& runtime_;
  double seconds_;
};

ProductRates gemm_rates(const plan::WorkItem& item, LibraryRates& library) {
  const plan::OperandForm &a = item.operand("a"), &out = item.operand("out");
  const bool transpose_a = (item.form & 1) != 0, transpose_b = (item.form & 2) != 0;
  ProductRates rates{
      .kernel = "gemm",
      .form = fmt::format("{} {}{}", transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N',
                          out.access == kernels::Access::update ? " +" : ""),
      .m = out.shape[-2],
      .n = out.shape[-1],
      .k = a.shape[transpose_a ? -2 : -1]};
  library.measure({.batch = out.shape.rank() == 3 ? out.shape[0] : 1,
                   .m = rates.m,
                   .n = rates.n,
                   .k = rates.k,
                   .a = transpose_a ? Order::columns : Order::rows,
                   .b = transpose_b ? Order::columns : Order::rows,
                   .accumulate = out.access == kernels::Access::update,
                   .in = a.type,
                   .out = out.type},
                  rates);
  return rates;
}

// Evenly loaded experts as the library would compute them: a batch of products, one per expert.
ProductRates grouped_rates(const plan::WorkItem& item, LibraryRates& library) {
  const bool gradient = item.kernel == "grouped_gradient", transpose_b = (item.form & 2) != 0;
  const plan::OperandForm &rows = item.operand(gradient ? "x" : "a"),
                          &out = item.operand(gradient ? "dw" : "out");
  const int64_t groups = item.operand("offsets").shape[0] - 1,
                each = std::max<int64_t>(1, rows.shape[0] / groups);
  ProductRates rates{.kernel = std::string(item.kernel),
                     .form = gradient      ? "T N"
                             : transpose_b ? "N T"
                                           : "N N",
                     .m = gradient ? out.shape[-2] : each,
                     .n = out.shape[-1],
                     .k = gradient ? each : rows.shape[-1]};
  library.measure({.batch = groups,
                   .m = rates.m,
                   .n = rates.n,
                   .k = rates.k,
                   .a = gradient ? Order::columns : Order::rows,
                   .b = transpose_b && !gradient ? Order::columns : Order::rows,
                   .accumulate = out.access == kernels::Access::update,
                   .in = rows.type,
                   .out = out.type},
                  rates);
  return rates;
}

// Attention as the library would compute it: batched products over all pairs at their rates, of
// which only unmasked pairs count. Scores and probabilities are [T,S], in the type of q.
ProductRates attention_rates(const plan::WorkItem& item, bool backward, LibraryRates& library) {
  const plan::OperandForm &q = item.operand("q"), &k = item.operand("k");
  const int64_t heads = q.shape[0] * q.shape[2], T = q.shape[1], S = k.shape[1], D = q.shape[3];
  const auto product = [&](int64_t m, int64_t n, int64_t depth, Order a, Order b) {
    return LibraryProduct{
        .batch = heads, .m = m, .n = n, .k = depth, .a = a, .b = b, .in = q.type, .out = q.type};
  };
  const LibraryProduct scores = product(T, S, D, Order::rows, Order::columns);
  const LibraryProduct values = product(T, D, S, Order::rows, Order::rows);
  const LibraryProduct by_key = product(S, D, T, Order::columns, Order::rows);
  // Forward: scores and values. Backward: scores again, dP; dQ; dV and dK.
  std::vector<std::pair<LibraryProduct, int>> parts = {{scores, 1}, {values, 1}};
  if (backward) parts = {{scores, 2}, {values, 1}, {by_key, 2}};
  ProductRates rates{.kernel = std::string(item.kernel), .form = "", .m = T, .n = S, .k = D};
  double count = 0, plain = 0, packed = 0, transposed = 0;  // sums of 1 / rate
  for (const auto& [part, times] : parts) {
    ProductRates one;
    library.measure(part, one);
    if (one.plain == 0) return rates;
    count += times;
    plain += times / one.plain;
    packed += times / std::max(one.packed, 1.0);
    transposed += times / std::max(one.transposed, 1.0);
  }
  rates.plain = count / plain;
  rates.packed = count / packed;
  rates.transposed = count / transposed;
  return rates;
}

ProductRates product_rates(const plan::WorkItem& item, LibraryRates& library) {
  if (item.kernel == "gemm") return gemm_rates(item, library);
  if (item.kernel.starts_with("grouped")) return grouped_rates(item, library);
  if (item.kernel.starts_with("attention"))
    return attention_rates(item, item.kernel != "attention", library);
  return {.kernel = std::string(item.kernel)};  // the library has no such kernel
}

}  // namespace

double ProductRates::best() const { return std::max({own, plain, packed, transposed}); }

double StepFloor::product_seconds() const {
  double sum = 0;
  for (const ProductRates& p : products) sum += static_cast<double>(p.calls) * p.flops / p.best();
  return sum;
}

double StepFloor::flops() const {
  double sum = 0;
  for (const ProductRates& p : products) sum += static_cast<double>(p.calls) * p.flops;
  return sum;
}

double StepFloor::fastest() const {
  double rate = 0;
  for (const ProductRates& p : products) rate = std::max(rate, p.best());
  return rate;
}

double StepFloor::other_seconds() const {
  double bytes = 0;
  for (const OtherKernel& other : others) bytes += other.bytes;
  return bytes / bandwidth;
}

StepFloor measure_floor(const plan::StepWork& work, Runtime& runtime, double seconds) {
  StepFloor floor;
  plan::BandwidthMeter copies(runtime);
  LibraryRates library(runtime, seconds);
  copies.sample();
  for (const plan::WorkItem& item : work.kernels) {
    if (item.calls == 0) continue;
    if (item.cost.flops == 0) {
      auto found = std::ranges::find(floor.others, item.kernel, &OtherKernel::kernel);
      if (found == floor.others.end())
        found = floor.others.insert(floor.others.end(), {std::string(item.kernel)});
      found->calls += item.calls;
      found->bytes += static_cast<double>(item.calls) * item.cost.bytes;
      continue;
    }
    ProductRates rates = product_rates(item, library);
    rates.calls = item.calls;
    rates.flops = item.cost.flops;
    rates.own = rates.flops / own_seconds(item, runtime, seconds);
    floor.products.push_back(std::move(rates));
    copies.sample(1);
  }
  floor.bandwidth = copies.best();
  return floor;
}

void print_floor(const StepFloor& floor, double step_seconds) {
  fmt::print("GEMMs of a step, GFLOP/s by call (oneDNN: plain, packed, transposed)\n");
  fmt::print("{:<18} {:<5} {:>6} {:>6} {:>6} {:>5}  {:>7} {:>7} {:>7} {:>10} {:>7}  {:>8}\n",
             "kernel", "form", "M", "N", "K", "calls", "own", "plain", "packed", "transposed",
             "best", "ms");
  for (const ProductRates& p : floor.products) {
    fmt::print(
        "{:<18} {:<5} {:>6} {:>6} {:>6} {:>5}  {:>7.0f} {:>7.0f} {:>7.0f} {:>10.0f} {:>7.0f}  "
        "{:>8.2f}\n",
        p.kernel, p.form, p.m, p.n, p.k, p.calls, p.own * 1e-9, p.plain * 1e-9, p.packed * 1e-9,
        p.transposed * 1e-9, p.best() * 1e-9,
        static_cast<double>(p.calls) * p.flops / p.best() * 1e3);
  }
  fmt::print("other kernels of a step, at the copy bandwidth of {:.1f} GB/s\n",
             floor.bandwidth * 1e-9);
  fmt::print("{:<26} {:>6} {:>9} {:>9}\n", "kernel", "calls", "GB", "ms");
  for (const OtherKernel& other : floor.others) {
    fmt::print("{:<26} {:>6} {:>9.3f} {:>9.2f}\n", other.kernel, other.calls, other.bytes * 1e-9,
               other.bytes / floor.bandwidth * 1e3);
  }
  fmt::print(
      "floor {:.3f} s: GEMMs {:.3f} s + other kernels {:.3f} s; the step reaches {:.1f}% of that "
      "speed (goal {:.0f}%)\n",
      floor.seconds(), floor.product_seconds(), floor.other_seconds(),
      100 * floor.seconds() / step_seconds, kGoal);
  fmt::print("the fastest call above reaches {:.3f} TFLOP/s, the step {:.1f}% of that\n",
             floor.fastest() * 1e-12, 100 * floor.flops() / step_seconds / floor.fastest());
}

Json as_json(const StepFloor& floor, double step_seconds) {
  Json::Array products, others;
  for (const ProductRates& p : floor.products) {
    products.push_back(Json::Object{{"kernel", p.kernel},
                                    {"form", p.form},
                                    {"m", p.m},
                                    {"n", p.n},
                                    {"k", p.k},
                                    {"calls", p.calls},
                                    {"flops", p.flops},
                                    {"flops_per_second", p.own},
                                    {"best_flops_per_second", p.best()}});
  }
  for (const OtherKernel& other : floor.others) {
    others.push_back(
        Json::Object{{"kernel", other.kernel}, {"calls", other.calls}, {"bytes", other.bytes}});
  }
  return Json::Object{{"seconds", floor.seconds()},
                      {"share", floor.seconds() / step_seconds},
                      {"product_seconds", floor.product_seconds()},
                      {"other_seconds", floor.other_seconds()},
                      {"copy_bandwidth", floor.bandwidth},
                      {"fastest_flops_per_second", floor.fastest()},
                      {"products", std::move(products)},
                      {"others", std::move(others)}};
}

}  // namespace megatron::bench
