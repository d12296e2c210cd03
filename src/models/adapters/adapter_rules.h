// Applies an adapter's configuration to the parameters of a model.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/adapters/lora_config.h"
#include "nn/adapter_rules.h"

namespace megatron::models {

class Stage;

// The rules refer to `config`.
nn::AdapterRules adapter_rules(const LoraConfig& config);

// The name in the adapter's directory of a tensor that is trained: of the adapter itself, or of the
// model.
std::string stored_with_adapter(const LoraConfig& config, const std::string& tensor);

// The modules of a model that was built with an adapter.
struct AdaptedModules {
  std::vector<std::string> all;  // every module with a weight
  std::map<std::string, ModuleAdapter> adapted;
  std::map<std::string, ModuleAdapter> parameters;  // of all experts of a layer, if they are stored
};
AdaptedModules adapted_modules(const LoraConfig& config, const Stage& whole);

// The parameters of all experts of a layer that a model's directories store.
std::vector<std::string> expert_parameters(const Stage& whole);

// True if nothing of the model is trained but adapters, so that it is what it was without them.
bool leaves_model(const LoraConfig& config);

// Checks an adapter against the whole model, built with it. Throws Error naming a target that fits
// no module, modules that cannot have an adapter, or that no module has one.
void check_adapter(const LoraConfig& config, const Stage& whole);

}  // namespace megatron::models
