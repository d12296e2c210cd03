// Number of samples that a run requests from its train, valid and test sets. It determines the
// epochs and so the sample order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace megatron::data {

struct SampleBudget {
  std::optional<int64_t> train_samples;  // none: train_iterations * global_batch_size
  int64_t train_iterations = 0;
  int64_t global_batch_size = 0, eval_global_batch_size = 0;
  std::optional<int64_t> eval_interval;  // required unless skip_train or full_validation
  int64_t eval_iterations = 0;
  std::optional<int64_t> start_eval_at_iteration;
  bool full_validation = false, skip_train = false;
  std::vector<int64_t>
      phase_transition_iterations;  // requests the train set only for the phase of `iteration`
  int64_t iteration = 0;
};

// Samples for train, valid and test; none means one pass over the set.
//   valid = max(0, train_iterations / eval_interval + 1 - start_eval / eval_interval) *
// eval_iterations * eval batch
//   test = eval_iterations * eval batch
// Throws Error naming the flag for a number out of range.
std::array<std::optional<int64_t>, 3> requested_samples(const SampleBudget& budget);

}  // namespace megatron::data
