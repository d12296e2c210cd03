// Runs that train an adapter of a model (models/adapters).
#pragma once

#include <span>
#include <string>

#include "checkpoint/model_directory.h"
#include "models/model.h"
#include "settings/adapter_settings.h"
#include "settings/settings.h"
#include "training/whole_model.h"

namespace megatron::training {

struct RunPlan;

// The model with the adapter of the settings, or with the one that it has. Throws Error naming what
// does not fit.
models::Model with_adapter(const models::Model& model, const settings::AdapterSettings& settings);

// adapter_config.json of the model's adapter, with the adapted modules by name, for weights in the
// directory `base`.
Json adapter_config(const models::Model& model, const std::string& base);

// Fills what a new adapter begins with of the weights in `directory`, on the rank that holds
// `shards`: magnitudes (DoRA) with the lengths of rows, trained rows of tables with these.
void fill_from_model(std::span<const parallel::Shard> shards, const WholeModel& whole,
                     const checkpoint::ModelDirectory& directory);

// The directory of the model that the settings, before they were settled, name for an adapter; "":
// none.
std::string given_base(const settings::TrainSettings& given);
// Throws Error if a run that trains an adapter has no weights that this belongs to, or would
// change them, or if a resumed one has another base model than it had. Returns the base model's
// fingerprint; "" without an adapter.
std::string check_base(const RunPlan& plan);

// Throws Error unless the directory is that of an adapter with the modules, ranks and scales of the
// model's.
void check_same_adapter(const models::Model& model, const checkpoint::ModelDirectory& directory);

}  // namespace megatron::training
