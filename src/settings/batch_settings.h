// Batch sizes and the number of steps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "data/batch_schedule.h"

namespace megatron::settings {

// How a token's loss enters the objective.
enum class LossScope {
  token,        // weight 1 for every counted token of the step; divided once by their number
  micro_batch,  // each micro-batch's own mean, averaged (Megatron-LM without
                // --calculate-per-token-loss)
};

struct BatchSettings {
  std::optional<int64_t> seq_length, micro_batch_size, global_batch_size;
  std::optional<int64_t> train_iters, train_samples;  // with extend_to_iters: of finalize(), that
  std::optional<int64_t> extend_to_iters;
  std::optional<std::string> step_batch_size_schedule;
  std::vector<std::string> rampup_batch_size;
  bool decrease_batch_size = false;
  bool per_token_loss = true;

  void fields(Fields& fields);
  LossScope scope() const { return per_token_loss ? LossScope::token : LossScope::micro_batch; }
  // Fills defaults, the number of iterations and the schedule, and checks; data_parallel: number of
  // ranks. With a schedule the global batch size becomes its last.
  void finalize(int data_parallel);
  int64_t total_samples() const { return schedule.samples_after(*train_iters); }  // consumed
  // Samples of the run without --extend-to-iters.
  int64_t base_samples() const {
    return train_samples.value_or(schedule.samples_after(base_iters));
  }
  // Length of the schedules of learning rate and weight decay.
  int64_t scheduled_iters() const { return schedule_extended ? *train_iters : base_iters; }
  int64_t scheduled_samples() const {
    return schedule_extended && extend_to_iters ? total_samples() : base_samples();
  }

  // Set by finalize().
  data::BatchSchedule schedule;
  int64_t base_iters = 0;          // without --extend-to-iters
  bool schedule_extended = false;  // --override-opt-param-scheduler: it reaches over the extension
};

}  // namespace megatron::settings
