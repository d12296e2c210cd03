#include "bench/call_timing.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/clock.h"
#include "base/divide.h"
#include "device/cuda_plugin.h"

namespace megatron::bench {
namespace {

constexpr double kWindow = 0.03;  // seconds of consecutive calls that count as sustained

// The range of bytes of a storage that the tensors of one call occupy.
struct Extent {
  Tensor any;
  std::byte* begin;
  std::byte* end;
  int64_t size;  // bytes of an element, the same for all of them
};

int64_t reach(const Tensor& t) {  // elements from the first to the end of the last
  if (t.elements() == 0) return 0;
  int64_t last = 0;
  for (int i = 0; i < t.rank(); ++i) last += (t.size(i) - 1) * t.stride(i);
  return last + 1;
}

std::vector<Extent> extents(const std::vector<kernels::Operand>& operands) {
  std::vector<Extent> found;
  for (const kernels::Operand& o : operands) {
    auto* begin = static_cast<std::byte*>(o.tensor.address());
    begin -= reinterpret_cast<uintptr_t>(begin) % 64;
    std::byte* end =
        static_cast<std::byte*>(o.tensor.address()) + reach(o.tensor) * size_of(o.tensor.dtype());
    const auto same =
        std::ranges::find_if(found, [&](const Extent& e) { return e.any.same_storage(o.tensor); });
    if (same == found.end()) {
      found.push_back({o.tensor, begin, end, static_cast<int64_t>(size_of(o.tensor.dtype()))});
    } else {
      same->begin = std::min(same->begin, begin);
      same->end = std::max(same->end, end);
    }
  }
  return found;
}

}  // namespace

void CallKeeper::after(const kernels::Call& call) {
  if (!wanted_(call)) return;
  calls.push_back({std::string(call.kernel),
                   call.cost,
                   {call.operands.begin(), call.operands.end()},
                   call.again()});
}

ColdCall::ColdCall(const SeenCall& call, Runtime& runtime)
    : runtime_(runtime), clock_(runtime), again_(call.again) {
  for (const Extent& e : extents(call.operands)) bytes_ += e.end - e.begin;
  const int64_t sets =
      std::clamp<int64_t>((kColdBytes + bytes_ - 1) / std::max<int64_t>(bytes_, 1), 1, kMaxSets);
  for (int64_t i = 0; i < sets; ++i) add_set(call);
}

void ColdCall::add_set(const SeenCall& call) {
  const std::vector<Extent> blocks = extents(call.operands);
  std::vector<Tensor> copies;
  for (const Extent& e : blocks) {
    const int64_t bytes = e.end - e.begin;
    copies.push_back(Tensor::empty(runtime_.arena(MemoryClass::scratch), {ceil_div(bytes, e.size)},
                                   e.any.dtype(), "bench.operand"));
    if (runtime_.device().kind == DeviceKind::cuda) {
      cuda_plugin().copy(copies.back().address(), e.begin, bytes, runtime_.stream());
    } else {
      std::memcpy(copies.back().raw(), e.begin, static_cast<size_t>(bytes));
    }
  }
  std::vector<Tensor> tensors;
  for (const kernels::Operand& o : call.operands) {
    size_t block = 0;
    while (!blocks[block].any.same_storage(o.tensor)) ++block;
    const Tensor& t = o.tensor;
    std::array<int64_t, kMaxRank> strides{};
    for (int i = 0; i < t.rank(); ++i) strides[static_cast<size_t>(i)] = t.stride(i);
    tensors.push_back(copies[block].view_as(t.dtype()).as_strided(
        t.shape(), std::span(strides.data(), static_cast<size_t>(t.rank())),
        (static_cast<std::byte*>(t.address()) - blocks[block].begin) / size_of(t.dtype())));
  }
  sets_.push_back(std::move(tensors));
}

std::optional<double> rate_in_cache(const SeenCall& call, Device device, int threads,
                                    double seconds) {
  constexpr double kBytes = 512 << 10;  // half of a typical L2 cache
  const auto bytes = [](const kernels::Operand& o) { return o.tensor.bytes(); };
  const Tensor& largest = std::ranges::max_element(call.operands, {}, bytes)->tensor;
  if (largest.rank() == 0 || call.kernel.starts_with("embedding")) return std::nullopt;
  const int64_t rows = largest.size(0);
  int64_t part = rows;
  while (part > 1 &&
         call.cost.bytes * static_cast<double>(part) > kBytes * static_cast<double>(rows))
    part /= 2;
  std::vector<Tensor> tensors;
  for (const kernels::Operand& o : call.operands) {
    const bool cut = o.tensor.rank() > 0 && o.tensor.size(0) == rows;
    tensors.push_back(cut ? o.tensor.slice(0, 0, part) : o.tensor);
  }
  Runtime one(device, 1);
  try {
    const double taken =
        best_seconds(one, seconds, [&](size_t) { call.again(tensors, one.stream()); });
    return threads * call.cost.bytes * static_cast<double>(part) / static_cast<double>(rows) /
           taken;
  } catch (const std::exception&) {  // its tensors are no longer consistent
    return std::nullopt;
  }
}

void ColdCall::run() { again_(sets_[turn_++ % sets_.size()], runtime_.stream()); }

double ColdCall::best_seconds(double seconds) {
  return bench::best_seconds(runtime_, seconds, [this](size_t) { run(); });
}

double ColdCall::mean_seconds(double window) {
  if (turn_ == 0) {
    run();
    runtime_.stream().synchronize();
  }
  return clock_.mean_seconds(window, [this] { run(); });
}

double best_seconds(Runtime& runtime, double seconds, const std::function<void(size_t turn)>& run) {
  const double window = std::min(kWindow, seconds / 3);
  plan::CallClock clock(runtime);
  size_t turn = 0;
  run(turn++);
  runtime.stream().synchronize();
  double best = 1e30;
  const double end = now_seconds() + seconds;
  for (int windows = 0; windows < 3 || now_seconds() < end; ++windows)
    best = std::min(best, clock.mean_seconds(window, [&] { run(turn++); }));
  return best;
}

}  // namespace megatron::bench
