// What a training run is made of once its settings are checked: all that can be known before step
// 0.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "training/checkpointer.h"
#include "training/corpus.h"
#include "training/model_source.h"
#include "training/resume.h"
#include "training/settings.h"

namespace megatron::training {

// What all ranks share.
struct RunPlan {
  double began = 0;  // seconds of the steady clock
  TrainSettings settings;
  Vocabulary vocabulary;
  Corpus corpus;
  models::GptConfig config;
  Beginning beginning;
  std::optional<SaveDirectory::Lock> lock;  // of --save
  SavedFiles saved;                         // of the checkpoints
  optim::LearningRate learning_rate;
  optim::WeightDecay weight_decay;

  int64_t first_iteration() const { return beginning.state.iteration; }  // steps done before
  int64_t iterations_left() const;                                       // 0 for a run that is done
  // That the run will have consumed at its end, where the batches of its first part were others, too.
  int64_t last_sample() const;
};

// Checks everything that a user can get wrong, and opens the data. Throws Error naming the value,
// the limit and the flag. processes: those of the run.
RunPlan make_run_plan(const TrainSettings& given, comm::Group& processes);

}  // namespace megatron::training
