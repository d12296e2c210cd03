// Settings of a run besides its steps: evaluation, order, samples.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "settings/batch_settings.h"

namespace megatron::settings {

struct RunSettings {
  std::optional<int64_t> eval_interval;
  int64_t eval_iters = 100;
  std::optional<int64_t> eval_global_batch_size, eval_micro_batch_size, start_eval_at_iter;
  bool full_validation = false, multiple_validation_sets = false;
  bool skip_train = false;
  std::vector<std::string> iterations_to_skip;
  std::vector<std::string> validation_set_names;
  std::string dataloader_type = "single";
  bool data_sharding = true;
  std::optional<std::string> model;
  std::optional<std::string> model_config;  // a file, or a name from recipes.h
  // Prompts that the model continues at intervals, for people to read.
  std::optional<int64_t> sample_interval;
  std::vector<std::string> sample_prompt;
  int64_t sample_tokens = 64;

  void fields(Fields& fields);
  // Numbers of --iterations-to-skip, in ascending order: n is the step after n others. Throws Error
  // naming a value that is not a number.
  std::vector<int64_t> skipped() const;
  // Number of evaluations that a run makes before the one after `iteration` steps.
  int64_t evaluations_before(int64_t iteration) const;
  bool evaluates_after(int64_t iteration) const;
  bool evaluates_test_set() const { return eval_iters > 0 && (skip_train || eval_interval); }
  // Throws Error naming the flags; ranks: number of data-parallel ranks. Call after the batch
  // settings' finalize().
  void check(const BatchSettings& batch, int ranks) const;
  int64_t eval_batch(const BatchSettings& batch) const;
  int64_t eval_micro_batch(const BatchSettings& batch) const;
};

}  // namespace megatron::settings
