#include "autograd/metrics.h"

#include <algorithm>

#include "autograd/tape.h"
#include "base/error.h"

namespace megatron {

using kernels::SumArgs;

Metrics::Metrics(std::vector<MetricDefinition> definitions, Runtime& runtime, bool first_copy)
    : definitions_(std::move(definitions)), first_copy_(first_copy) {
  if (empty()) return;
  sums_ = Tensor::empty(runtime.arena(MemoryClass::optimizer),
                        {static_cast<int64_t>(definitions_.size()), 2}, DType::f64, "step.metrics");
}

void Metrics::begin_step(Runtime& runtime) {
  if (!empty()) kernels::table(runtime.stream()).fill({.out = sums_, .value = 0}, runtime.stream());
}

void Metrics::add(std::string_view name, const MetricReport& report, const Tape& tape) {
  const auto found = std::ranges::find(definitions_, name, &MetricDefinition::name);
  if (found == definitions_.end())
    throw InternalError(fmt::format("'{}' is not among the model's metrics", name));
  MG_ASSERT(report.weights.defined() == (found->kind == MetricDefinition::Kind::mean));
  if (!report.divided && !first_copy_) return;
  const auto add_to = [&](int64_t column, const Tensor& x, const Tensor& weights) {
    const Tensor total =
        sums_.view({sums_.elements()}).slice(0, 2 * (found - definitions_.begin()) + column, 1);
    // By `sum` alone: back-ends need not add f64 otherwise.
    const Tensor both = tape.empty({2}, DType::f64, "metric");
    const auto sum = [&](const SumArgs& args) { tape.kernels().sum(args, tape.stream()); };
    sum({.x = total, .out = both.slice(0, 0, 1).view({})});
    sum({.x = x, .weights = weights, .out = both.slice(0, 1, 1).view({})});
    sum({.x = both, .out = total.view({})});
  };
  add_to(0, report.values, report.weights);
  if (report.weights.defined()) add_to(1, report.weights, {});
}

std::vector<MetricValue> Metrics::values() const {
  if (empty()) return {};
  const std::vector<double> sums = to_doubles(sums_);
  std::vector<MetricValue> values;
  for (size_t i = 0; i < definitions_.size(); ++i) {
    const bool mean = definitions_[i].kind == MetricDefinition::Kind::mean;
    values.push_back({definitions_[i].name, mean ? sums[2 * i] / sums[2 * i + 1] : sums[2 * i]});
  }
  return values;
}

}  // namespace megatron
