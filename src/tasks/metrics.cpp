#include "tasks/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "data/random_state.h"

namespace megatron::tasks {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double sample_deviation(std::span<const double> values) {
  if (values.size() < 2) return kNone;
  const double mu = mean(values);
  double sum = 0;
  for (const double x : values) sum += (x - mu) * (x - mu);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

}  // namespace

Estimate mean_of(std::span<const double> values) {
  if (values.empty()) return {kNone, kNone};
  return {mean(values), sample_deviation(values) / std::sqrt(static_cast<double>(values.size()))};
}

Estimate perplexity_of(std::span<const double> log_likelihoods, ThreadPool& pool) {
  if (log_likelihoods.empty()) return {kNone, kNone};
  constexpr int64_t kSeeds = 100, kSamples = 1000;  // kSamples: per seed
  std::vector<double> perplexities(kSeeds * kSamples);
  const auto count = static_cast<double>(log_likelihoods.size());
  pool.parallel_for(kSeeds, [&](int64_t seed, int) {
    auto random = data::RandomState::python(static_cast<uint32_t>(seed));
    for (int64_t s = 0; s < kSamples; ++s) {
      double sum = 0;
      for (size_t i = 0; i < log_likelihoods.size(); ++i)
        sum += log_likelihoods[static_cast<size_t>(random.uniform() * count)];
      perplexities[static_cast<size_t>(seed * kSamples + s)] = std::exp(-(sum / count));
    }
  });
  return {std::exp(-mean(log_likelihoods)),
          log_likelihoods.size() < 2 ? kNone : sample_deviation(perplexities)};
}

Estimate pooled(std::span<const Part> parts) {
  double sum = 0, variance = 0;
  int64_t size = 0;
  for (const Part& part : parts) {
    const auto n = static_cast<double>(part.size);
    sum += part.estimate.value * n;
    if (part.size > 1)
      variance += (n - 1) * part.estimate.standard_error * part.estimate.standard_error * n;
    size += part.size;
  }
  const auto n = static_cast<double>(size), freedom = n - static_cast<double>(parts.size());
  return {sum / n, freedom > 0 ? std::sqrt(variance / freedom / n) : kNone};
}

double share_of_true(std::span<const double> log_likelihoods, const std::vector<bool>& is_true) {
  const double most = log_likelihoods[largest(log_likelihoods)];
  double all = 0, right = 0;
  for (size_t i = 0; i < log_likelihoods.size(); ++i) {
    const double probability = std::exp(log_likelihoods[i] - most);
    all += probability;
    if (is_true[i]) right += probability;
  }
  return right / all;
}

size_t largest(std::span<const double> values) {
  return static_cast<size_t>(std::ranges::max_element(values) - values.begin());
}

}  // namespace megatron::tasks
