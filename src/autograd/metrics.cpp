#include "autograd/metrics.h"

#include <algorithm>
#include <cmath>

#include "autograd/tape.h"
#include "base/error.h"

namespace megatron {
namespace {

using kernels::SumArgs;
using Kind = MetricDefinition::Kind;

// Number of values per layer.
int64_t width_of(const MetricDefinition& d) { return d.kind == Kind::tally ? d.width : 2; }

int64_t size_of(const MetricDefinition& d) {
  return width_of(d) * std::max<int64_t>(1, std::ssize(d.layers));
}

// Mean over the layers that have a value.
double mean_of(const std::vector<MetricValue::Layer>& layers) {
  double sum = 0;
  int64_t count = 0;
  for (const auto& [layer, value] : layers) {
    if (std::isnan(value)) continue;
    sum += value;
    ++count;
  }
  return sum / static_cast<double>(count);
}

// sums: for every layer, values and weights alternately.
MetricValue reported(const MetricDefinition& d, std::span<const double> sums) {
  const auto value = [&](double values, double weights) {
    return d.kind == Kind::mean ? values / weights : values;
  };
  MetricValue result{.name = d.name, .least_stands_out = d.least_stands_out};
  double values = 0, weights = 0;
  for (size_t i = 0; 2 * i < sums.size(); ++i) {
    values += sums[2 * i];
    weights += sums[2 * i + 1];
    if (!d.layers.empty())
      result.layers.push_back({d.layers[i], value(sums[2 * i], sums[2 * i + 1])});
  }
  result.value = value(values, weights);
  return result;
}

MetricValue tallied(const MetricDefinition& d, const TallyFigure& figure,
                    std::span<const double> sums) {
  MetricValue result{.name = figure.name, .least_stands_out = d.least_stands_out};
  const auto width = static_cast<size_t>(d.width);
  for (size_t i = 0; i < d.layers.size(); ++i)
    result.layers.push_back({d.layers[i], figure.of(d.layers[i], sums.subspan(i * width, width))});
  result.value = mean_of(result.layers);
  return result;
}

}  // namespace

Metrics::Metrics(std::vector<MetricDefinition> definitions, bool first_copy)
    : definitions_(std::move(definitions)), first_copy_(first_copy) {
  for (const MetricDefinition& d : definitions_) {
    MG_ASSERT(d.kind != Kind::tally || (d.width > 0 && !d.layers.empty()));
    begins_.push_back(size_);
    size_ += size_of(d);
  }
}

void Metrics::use(const Tensor& sums) {
  MG_ASSERT(sums.dtype() == DType::f64 && sums.elements() == size_);
  sums_ = sums;
}

void Metrics::begin_step(Stream& stream) {
  if (!empty()) kernels::table(stream).fill({.out = sums_, .value = 0}, stream);
}

Metrics::Place Metrics::place_of(std::string_view name, int64_t layer) const {
  const auto found = std::ranges::find(definitions_, name, &MetricDefinition::name);
  if (found == definitions_.end())
    throw InternalError(fmt::format("'{}' is not among the model's metrics", name));
  const int64_t begin = begins_[static_cast<size_t>(found - definitions_.begin())];
  if (found->layers.empty()) return {*found, begin};
  const auto at = std::ranges::lower_bound(found->layers, layer);
  if (at == found->layers.end() || *at != layer)
    throw InternalError(fmt::format("'{}' is not a metric of layer {}", name, layer));
  return {*found, begin + width_of(*found) * (at - found->layers.begin())};
}

void Metrics::add(std::string_view name, const MetricReport& report, const Tape& tape) {
  const auto [definition, begin] = place_of(name, report.layer);
  MG_ASSERT(definition.kind != Kind::tally &&
            report.weights.defined() == (definition.kind == Kind::mean));
  if (!report.divided && !first_copy_) return;
  const auto add_to = [&](int64_t at, const Tensor& x, const Tensor& weights) {
    const Tensor total = sums_.slice(0, at, 1);
    // Uses only `sum`: back-ends need not support f64 additions otherwise.
    const Tensor both = tape.empty({2}, DType::f64, "metric");
    const auto sum = [&](const SumArgs& args) { tape.kernels().sum(args, tape.stream()); };
    sum({.x = total, .out = both.slice(0, 0, 1).view({})});
    sum({.x = x, .weights = weights, .out = both.slice(0, 1, 1).view({})});
    sum({.x = both, .out = total.view({})});
  };
  add_to(begin, report.values, report.weights);
  if (report.weights.defined()) add_to(begin + 1, report.weights, {});
}

Tensor Metrics::tally(std::string_view name, int64_t layer) const {
  const auto [definition, begin] = place_of(name, layer);
  MG_ASSERT(definition.kind == Kind::tally);
  return sums_.slice(0, begin, definition.width);
}

std::vector<MetricValue> Metrics::values(std::span<const double> all) const {
  std::vector<MetricValue> values;
  for (size_t i = 0; i < definitions_.size(); ++i) {
    const MetricDefinition& d = definitions_[i];
    const auto sums = all.subspan(static_cast<size_t>(begins_[i]), static_cast<size_t>(size_of(d)));
    if (d.kind != Kind::tally) values.push_back(reported(d, sums));
    const auto width = static_cast<size_t>(d.width);
    for (size_t l = 0; d.check && l < d.layers.size(); ++l)
      d.check(d.layers[l], sums.subspan(l * width, width));
    for (const TallyFigure& figure : d.figures) values.push_back(tallied(d, figure, sums));
  }
  return values;
}

}  // namespace megatron
