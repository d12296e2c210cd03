// Batch sizes and the number of steps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "data/batch_schedule.h"

namespace megatron::settings {

// Weighting of the tokens' losses in the objective.
enum class LossScope {
  token,  // equal weight for every counted token of the step; divided once by their number
  // Mean of each micro-batch, averaged (Megatron-LM without --calculate-per-token-loss).
  micro_batch,
};

struct BatchSettings {
  // seq_length: of what the encoder reads, if the model is an encoder-decoder.
  std::optional<int64_t> seq_length, decoder_seq_length, micro_batch_size, global_batch_size;
  // With extend_to_iters, finalize() sets train_iters.
  std::optional<int64_t> train_iters, train_samples;
  // Passes over the training set. finalize() sets the largest train_iters that are possible, until
  // count_epochs() knows the number.
  std::optional<int64_t> epochs;
  std::optional<int64_t> extend_to_iters;
  std::optional<std::string> step_batch_size_schedule;
  std::vector<std::string> rampup_batch_size;
  bool decrease_batch_size = false;
  bool per_token_loss = true;

  void fields(Fields& fields);
  // Tokens of a sequence that has labels: for an encoder-decoder, the decoder's.
  int64_t labelled_length() const { return decoder_seq_length.value_or(*seq_length); }
  // Tokens of a sample; encodes: including those of a text for an encoder.
  int64_t tokens_per_sample(bool encodes) const {
    return labelled_length() + (encodes ? *seq_length : 0);
  }
  LossScope scope() const { return per_token_loss ? LossScope::token : LossScope::micro_batch; }
  // Fills defaults, the number of iterations and the schedule, and checks; data_parallel: number of
  // ranks. With a schedule the global batch size becomes its last.
  void finalize(int data_parallel);
  // Sets the number of iterations to that of `epochs` passes over a training set of this many rows.
  void count_epochs(int64_t rows);
  // Samples consumed by the end.
  int64_t total_samples() const { return schedule.samples_after(*train_iters); }
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
  int64_t base_iters = 0;  // iterations without --extend-to-iters
  // --override-opt-param-scheduler: schedules also cover the extension
  bool schedule_extended = false;
};

}  // namespace megatron::settings
