#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

constexpr double kMinLoad = 1e-8;

// The score that an expert is chosen by. logits: of the token.
template <class C>
C choice_score(const RouterForm& form, const std::vector<C>& logits, size_t first, size_t experts,
               size_t e) {
  const C x = logits[first + e];
  if (form.score == RouterScore::sigmoid) return 1 / (1 + std::exp(-x));
  if (form.score == RouterScore::sqrt_softplus)
    return std::sqrt(std::max<C>(x, 0) + std::log1p(std::exp(-std::abs(x))));
  if (!form.softmax_first) return x;
  const C most = *std::max_element(logits.begin() + static_cast<int64_t>(first),
                                   logits.begin() + static_cast<int64_t>(first + experts));
  C sum = 0;
  for (size_t i = 0; i < experts; ++i) sum += std::exp(logits[first + i] - most);
  return std::exp(x - most - std::log(sum));
}

// The n-th highest value, n counting from 1; NaN is the lowest value.
template <class C>
C nth_highest(std::vector<C> values, size_t n) {
  for (C& value : values)
    if (std::isnan(value)) value = -std::numeric_limits<C>::infinity();
  std::ranges::sort(values, std::greater());
  return values[n - 1];
}

// Whether each of `tokens` tokens counts.
std::vector<bool> counts_of(const Tensor& counted, size_t tokens) {
  std::vector<bool> counts(tokens, true);
  if (!counted.defined()) return counts;
  const std::vector<int64_t> numbers = load_integers(counted);
  for (size_t t = 0; t < tokens; ++t) counts[t] = numbers[t] >= 0;
  return counts;
}

template <class C>
void thresholds_typed(const ExpertThresholdsArgs& args) {
  const std::vector<C> logits = load<C>(args.logits), bias = load<C>(args.bias);
  const auto tokens = static_cast<size_t>(args.logits.size(0)),
             experts = static_cast<size_t>(args.logits.size(1)), k = static_cast<size_t>(args.k);
  const std::vector<bool> counts = counts_of(args.counted, tokens);
  std::vector<std::vector<C>> above(experts);
  for (size_t t = 0; t < tokens; ++t) {
    if (!counts[t]) continue;
    std::vector<C> s, c;
    for (size_t e = 0; e < experts; ++e) {
      s.push_back(choice_score(args.form, logits, t * experts, experts, e));
      c.push_back(s[e] + bias[e]);
    }
    const C alpha = nth_highest(c, k + 1);
    for (size_t e = 0; e < experts; ++e) above[e].push_back(s[e] - alpha);
  }
  std::vector<C> thresholds;
  for (const std::vector<C>& values : above)
    thresholds.push_back(values.empty() ? C(0)
                                        : nth_highest(values, values.size() * k / experts + 1));
  store(args.thresholds, thresholds);
}

}  // namespace

void sinkhorn(const SinkhornArgs& args, Stream&) {
  std::vector<double> k = load<double>(args.logits);
  const auto tokens = static_cast<size_t>(args.logits.size(0)),
             experts = static_cast<size_t>(args.logits.size(1));
  const std::vector<bool> counts = counts_of(args.counted, tokens);
  const auto real = static_cast<double>(std::ranges::count(counts, true));
  for (size_t t = 0; t < tokens; ++t) {
    const auto row = std::span(k).subspan(t * experts, experts);
    const double most = *std::ranges::max_element(row);
    for (double& x : row) x = std::exp(x - most);
  }
  std::vector<double> r(tokens), c(experts, 1);
  for (int64_t i = 0; i < args.iterations; ++i) {
    for (size_t t = 0; t < tokens; ++t) {
      if (!counts[t]) continue;
      double sum = 0;
      for (size_t e = 0; e < experts; ++e) sum += c[e] * k[t * experts + e];
      r[t] = 1 / (real * (sum + kMinLoad));
    }
    double change = 0;
    for (size_t e = 0; e < experts; ++e) {
      double sum = 0;
      for (size_t t = 0; t < tokens; ++t) sum += r[t] * k[t * experts + e];
      const double next = 1 / (static_cast<double>(experts) * (sum + kMinLoad));
      change += std::abs(next - c[e]);
      c[e] = next;
    }
    if (!(change / static_cast<double>(experts) > args.tolerance)) break;
  }
  for (size_t i = 0; i < k.size(); ++i) k[i] *= r[i / experts] * c[i % experts];
  store(args.out, k);
}

void expert_thresholds(const ExpertThresholdsArgs& args, Stream&) {
  args.logits.dtype() == DType::f64 ? thresholds_typed<double>(args)
                                    : thresholds_typed<float>(args);
}

void threshold_bias(const ThresholdBiasArgs& args, Stream&) {
  const std::vector<double> sums = load<double>(args.sums);
  std::vector<double> bias = load<double>(args.bias);
  for (size_t e = 0; e < bias.size() && sums.back() != 0; ++e)
    bias[e] = args.ema * bias[e] - (1 - args.ema) * sums[e] / sums.back();
  store(args.bias, bias);
}

}  // namespace megatron::kernels::reference
