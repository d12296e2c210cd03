// What a training run is made of once its settings are checked: all that can be known before step
// 0.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "training/corpus.h"
#include "training/model_source.h"
#include "training/settings.h"

namespace megatron::training {

// What all ranks share.
struct RunPlan {
  TrainSettings settings;
  Vocabulary vocabulary;
  Corpus corpus;
  models::GptConfig config;
  std::unique_ptr<checkpoint::ModelDirectory> initial_weights;
  std::optional<SaveDirectory> save;
  Json saved_config;            // config.json of the checkpoints
  Companions saved_companions;  // and what lies beside it
  optim::LearningRate learning_rate;
  optim::WeightDecay weight_decay;
};

// Checks everything that a user can get wrong, and opens the data. Throws Error naming the value,
// the limit and the flag.
RunPlan make_run_plan(const TrainSettings& given);

}  // namespace megatron::training
