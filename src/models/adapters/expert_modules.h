// Names of experts: as modules of their own (transformers before 5, published files, adapters of
// single experts) and as parts of a parameter of all experts (transformers 5, target_parameters).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/adapters/adapter_directory.h"
#include "models/adapters/lora_config.h"

namespace megatron::models {

// What the module "model.layers.0.mlp.experts.7.up_proj" is.
struct ExpertModule {
  std::string experts;         // "model.layers.0.mlp.experts"
  int64_t number = 0;          // 7
  std::string_view parameter;  // "gate_up_proj" or "down_proj" [E,out,in]
  int64_t half = 0;            // of [gate | up]

  std::string parameter_name() const { return experts + "." + std::string(parameter); }
};
// Nothing for a module that is not an expert's.
std::optional<ExpertModule> expert_module(std::string_view module);

// True for experts' modules and parameters.
bool is_of_experts(std::string_view module);

// adapter_of() for a linear module, which may be an expert's whose parameter is a target.
std::optional<ModuleAdapter> adapter_of_matrix(const LoraConfig& config, std::string_view module);

// The name of a tensor of the adapter of a parameter of all experts ("...experts.down_proj"), which
// depends on the other parameters that the configuration adapts (nested_parameter()).
std::string stored_parameter_name(const LoraConfig& config, std::string_view parameter,
                                  AdapterPart part);

}  // namespace megatron::models
