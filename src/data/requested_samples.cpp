#include "data/requested_samples.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::data {
namespace {

int64_t product(int64_t iterations, int64_t batch) {
  int64_t samples = 0;
  MG_CHECK(!__builtin_mul_overflow(iterations, batch, &samples),
           "{} iterations of {} samples overflow a 64-bit count (--train-iters, --eval-iters, "
           "--global-batch-size)",
           iterations, batch);
  return samples;
}

int64_t train_samples(const SampleBudget& budget) {
  if (!budget.phase_transition_iterations.empty()) {
    int64_t begin = 0, end = budget.train_iterations;
    for (const int64_t border : budget.phase_transition_iterations) {
      MG_CHECK(border > 0 && border <= budget.train_iterations,
               "--phase-transition-iterations has {}; it must lie in [1, {}]", border,
               budget.train_iterations);
      if (border <= budget.iteration) begin = std::max(begin, border);
      if (border > budget.iteration) end = std::min(end, border);
    }
    return product(end - begin, budget.global_batch_size);
  }
  if (budget.train_samples) return *budget.train_samples;
  return product(budget.train_iterations, budget.global_batch_size);
}

std::optional<int64_t> valid_samples(const SampleBudget& budget, int64_t per_evaluation) {
  if (budget.full_validation) return {};
  if (budget.skip_train) return per_evaluation;
  if (budget.eval_iterations == 0) return 0;
  MG_CHECK(budget.eval_interval && *budget.eval_interval > 0,
           "the evaluation interval is {} (--eval-interval); give a positive number of iterations, "
           "or --eval-iters 0",
           budget.eval_interval.value_or(0));
  const int64_t interval = *budget.eval_interval;
  const int64_t evaluations = budget.train_iterations / interval + 1 -
                              budget.start_eval_at_iteration.value_or(0) / interval;
  return product(std::max<int64_t>(0, evaluations), per_evaluation);
}

}  // namespace

std::array<std::optional<int64_t>, 3> requested_samples(const SampleBudget& budget) {
  MG_CHECK(budget.global_batch_size > 0, "--global-batch-size is {}; it must be positive",
           budget.global_batch_size);
  MG_CHECK(budget.eval_global_batch_size > 0, "--eval-global-batch-size is {}; it must be positive",
           budget.eval_global_batch_size);
  MG_CHECK(budget.train_iterations >= 0 && budget.train_samples.value_or(0) >= 0,
           "--train-iters is {} and --train-samples {}; they cannot be negative",
           budget.train_iterations, budget.train_samples.value_or(0));
  MG_CHECK(budget.eval_iterations >= 0, "--eval-iters is {}; it cannot be negative",
           budget.eval_iterations);
  const int64_t per_evaluation = product(budget.eval_iterations, budget.eval_global_batch_size);
  return {train_samples(budget), valid_samples(budget, per_evaluation), per_evaluation};
}

}  // namespace megatron::data
