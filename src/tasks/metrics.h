// Statistics over many examples, as computed by lm-evaluation-harness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"

namespace megatron::tasks {

struct Estimate {
  double value = 0, standard_error = 0;  // NaN if there are too few examples
};

// Standard error: sample standard deviation / sqrt(n); none for a single value.
Estimate mean_of(std::span<const double> values);

// exp(-mean). Standard error: the sample standard deviation of 100000 bootstrap samples, drawn with
// Python's random numbers of seeds 0 to 99.
Estimate perplexity_of(std::span<const double> log_likelihoods, ThreadPool& pool);

// Mean over several tasks weighted by size; the standard error is that of the pooled variance.
struct Part {
  Estimate estimate;
  int64_t size = 0;
};
Estimate pooled(std::span<const Part> parts);

// Share of the true choices in the probability of all choices.
double share_of_true(std::span<const double> log_likelihoods, const std::vector<bool>& is_true);

size_t largest(std::span<const double> values);  // index of the first maximum

}  // namespace megatron::tasks
