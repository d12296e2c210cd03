// Adapters: which modules of the model get one, their ranks, and how they are trained.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "models/adapters/lora_config.h"

namespace megatron::settings {

struct AdapterSettings {
  int64_t rank = 0;                  // 0: no new adapter
  std::optional<double> alpha;       // default: the rank, for a scale of 1
  std::vector<std::string> targets;  // default: all-linear
  std::vector<std::string> excluded, rank_pattern, alpha_pattern, layers, modules_to_save;
  std::vector<std::string> target_parameters, token_indices;
  models::LoraBias bias = models::LoraBias::none;
  bool rank_stabilized = false, weight_decomposed = false;
  std::optional<double> dropout;         // default: the directory's, or none
  double plus_ratio = 1;                 // learning rate of B by that of A
  std::optional<std::string> directory;  // of the adapter to start from

  void fields(Fields& fields);
  // Throws Error naming the flag, its value and what is accepted.
  void check() const;
  bool any() const { return rank > 0 || directory.has_value(); }
  // The adapter's configuration, from the flags or from the directory; nothing without an adapter.
  // What follows from the model (base_model, task_type, fan_in_fan_out) is left at its default in
  // one from the flags. Calls check(); throws Error for the directory's file, too.
  std::optional<models::LoraConfig> config() const;

 private:
  models::LoraConfig from_flags() const;
  models::LoraConfig from_directory() const;
};

}  // namespace megatron::settings
