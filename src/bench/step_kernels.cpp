#include "bench/step_kernels.h"

#include <fmt/core.h>

#include <algorithm>

#include "bench/call_timing.h"
#include "plan/replay_memory.h"

namespace megatron::bench {
namespace {

constexpr int64_t kColdBytes = int64_t{256} << 20;  // between two uses of one operand
constexpr size_t kMaxSets = 16;

double cold_seconds(const plan::WorkItem& item, Runtime& runtime, double seconds) {
  plan::ReplayMemory memory(runtime, kColdBytes);
  int64_t bytes = 1;
  for (const plan::OperandForm& form : item.operands) bytes += form.bytes();
  const auto sets = static_cast<size_t>(
      std::clamp<int64_t>(kColdBytes / bytes + 1, 2, static_cast<int64_t>(kMaxSets)));
  std::vector<std::vector<Tensor>> operands;
  for (size_t i = 0; i < sets; ++i) operands.push_back(memory.operands(item));
  return best_seconds(runtime, seconds,
                      [&](size_t turn) { item.again(operands[turn % sets], runtime.stream()); });
}

std::string sizes(const Shape& shape) {
  std::string text;
  for (int i = 0; i < shape.rank(); ++i) text += fmt::format("{}{}", i == 0 ? "" : " x ", shape[i]);
  return text.empty() ? "1" : text;
}

std::string shape_text(const plan::WorkItem& item) {
  if (item.kernel == "gemm") {
    const plan::OperandForm &a = item.operand("a"), &out = item.operand("out");
    const bool transpose_a = (item.form & 1) != 0, transpose_b = (item.form & 2) != 0;
    return fmt::format("{} {} {} x {} {}{}{}", transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N',
                       sizes(out.shape), a.shape[transpose_a ? -2 : -1], name(a.type),
                       out.access == kernels::Access::update ? " added" : "",
                       (item.form & kernels::kDoubleSums) != 0 ? ", sums in f64" : "");
  }
  const bool attends = item.kernel.starts_with("attention");
  if (attends) {
    const plan::OperandForm &q = item.operand("q"), &k = item.operand("k");
    return fmt::format("{}, keys {} x {} {}", sizes(q.shape), k.shape[1], k.shape[2], name(q.type));
  }
  const auto bytes = [](const plan::OperandForm& form) { return form.bytes(); };
  if (item.operands.empty()) return "";
  const plan::OperandForm& largest = *std::ranges::max_element(item.operands, {}, bytes);
  return fmt::format("{} {}", sizes(largest.shape), name(largest.type));
}

}  // namespace

bool StepKernel::is_product(const Limits& limits) const {
  return cost.flops / limits.peak > cost.bytes / limits.bandwidth;
}

double StepKernel::floor(const Limits& limits) const {
  return std::max(cost.flops / limits.peak, cost.bytes / limits.bandwidth);
}

double StepKernels::seconds() const {
  double sum = 0;
  for (const StepKernel& k : kernels) sum += k.all();
  return sum;
}

double StepKernels::floor() const {
  double sum = 0;
  for (const StepKernel& k : kernels) sum += static_cast<double>(k.calls) * k.floor(limits);
  return sum;
}

StepKernels measure_step_kernels(const plan::StepWork& work, Runtime& runtime, const Limits& limits,
                                 double seconds) {
  StepKernels all{.limits = limits, .kernels = {}};
  for (const plan::WorkItem& item : work.kernels) {
    if (item.calls == 0) continue;
    all.kernels.push_back({.kernel = std::string(item.kernel),
                           .shape = shape_text(item),
                           .calls = item.calls,
                           .cost = item.cost,
                           .seconds = cold_seconds(item, runtime, seconds)});
  }
  std::ranges::stable_sort(all.kernels, std::greater(), &StepKernel::all);
  return all;
}

void print_step_kernels(const StepKernels& kernels, std::optional<double> step_seconds) {
  size_t kernel = 6, shape = 5;
  for (const StepKernel& k : kernels.kernels) {
    kernel = std::max(kernel, k.kernel.size());
    shape = std::max(shape, k.shape.size());
  }
  const double whole = kernels.seconds();
  fmt::print("{:<{}}  {:<{}}  {:>6}  {:>9}  {:>16}  {:>12}  {:>10}  {:>6}\n", "kernel", kernel,
             "shape", shape, "calls", "ms a call", "rate", "% of", "ms a step", "share");
  for (const StepKernel& k : kernels.kernels) {
    const bool product = k.is_product(kernels.limits);
    const double rate = (product ? k.cost.flops : k.cost.bytes) / k.seconds;
    fmt::print(
        "{:<{}}  {:<{}}  {:>6}  {:>9.4f}  {:>8.1f} {:<7}  {:>7.1f} {}  {:>10.3f}  {:>5.1f}%\n",
        k.kernel, kernel, k.shape, shape, k.calls, k.seconds * 1e3, rate * (product ? 1e-12 : 1e-9),
        product ? "TFLOP/s" : "GB/s", 100 * k.floor(kernels.limits) / k.seconds,
        product ? "peak" : "copy", k.all() * 1e3, 100 * k.all() / whole);
  }
  fmt::print(
      "kernels {:.4f} s per step, each on its own; floor {:.4f} s: GEMMs at the peak of {:.1f} "
      "TFLOP/s, other kernels' bytes at the copy bandwidth of {:.1f} GB/s\n",
      whole, kernels.floor(), kernels.limits.peak * 1e-12, kernels.limits.bandwidth * 1e-9);
  if (!step_seconds) return;
  fmt::print("the step takes {:.4f} s: {:.1f}% of it in kernels, {:.1f}% of the floor's speed\n",
             *step_seconds, 100 * whole / *step_seconds, 100 * kernels.floor() / *step_seconds);
}

Json as_json(const StepKernels& kernels) {
  Json::Array list;
  for (const StepKernel& k : kernels.kernels) {
    list.push_back(Json::Object{{"kernel", k.kernel},
                                {"shape", k.shape},
                                {"calls", k.calls},
                                {"seconds", k.seconds},
                                {"flops", k.cost.flops},
                                {"bytes", k.cost.bytes},
                                {"limit", k.is_product(kernels.limits) ? "peak" : "copy"},
                                {"percent", 100 * k.floor(kernels.limits) / k.seconds}});
  }
  return Json(std::move(list));
}

}  // namespace megatron::bench
