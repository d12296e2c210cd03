// Runs that train an adapter of a model (models/adapters).
#pragma once

#include <string>

#include "checkpoint/model_directory.h"
#include "models/model.h"
#include "settings/adapter_settings.h"

namespace megatron::training {

// The model with the adapter of the settings, or with the one that it has. Throws Error naming what
// does not fit.
models::Model with_adapter(const models::Model& model, const settings::AdapterSettings& settings);

// adapter_config.json of the model's adapter, with the adapted modules by name, for weights in the
// directory `base`.
Json adapter_config(const models::Model& model, const std::string& base);

// Throws Error unless the directory is that of an adapter with the modules, ranks and scales of the
// model's.
void check_same_adapter(const models::Model& model, const checkpoint::ModelDirectory& directory);

}  // namespace megatron::training
