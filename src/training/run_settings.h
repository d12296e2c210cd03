// What a run does beside its steps: evaluation, order, samples.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"

namespace megatron::training {

struct RunSettings {
  std::optional<int64_t> eval_interval;
  int64_t eval_iters = 100;
  bool full_validation = false, multiple_validation_sets = false;
  std::vector<std::string> validation_set_names;
  std::string dataloader_type = "single";
  bool data_sharding = true;
  std::optional<std::string> model;
  // Text that the model continues now and then, for people to read.
  std::optional<int64_t> sample_interval;
  std::vector<std::string> sample_prompt;
  int64_t sample_tokens = 64;

  void fields(Fields& fields);
};

}  // namespace megatron::training
