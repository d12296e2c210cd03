// The weights of a run's reference model.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/model_directory.h"
#include "nn/module_state.h"
#include "parallel/placement.h"
#include "settings/settings.h"

namespace megatron::training {

struct RunPlan;
struct WholeModel;

struct ReferenceWeights {
  // Null: the reference model is initialized as a new model.
  std::shared_ptr<const checkpoint::ModelDirectory> weights;
  int64_t stored_tokens = 0;  // number of tokens in them if smaller than the model's; otherwise 0
  std::string fingerprint;    // equal for equal weights
};

// Fingerprint of a model directory (checkpoint/fingerprint.h): of its config.json and weight files.
// It depends neither on other files there nor on the directory's path.
std::string fingerprint_of_model(const std::string& directory);

// The weights of --reference-model, or else those that the run began with, even if it is resumed.
// Nothing if the task needs no reference model. given: the settings before they were settled.
// Throws Error if the model has another shape than the trained one, or if a resumed run began with
// another reference model.
std::optional<ReferenceWeights> find_reference(const RunPlan& plan,
                                               const settings::TrainSettings& given);

// Fills a model with them. logs: this rank logs them. seed: of the run.
void load_reference(const ReferenceWeights& reference, const WholeModel& whole,
                    std::span<const parallel::Shard> shards,
                    std::span<nn::ModuleState* const> states, uint64_t seed, Stream& stream,
                    bool logs);

}  // namespace megatron::training
