// What a training run is made of once its settings are checked: all that can be known before step
// 0.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/setting_note.h"
#include "corpus/corpus.h"
#include "resume/resume.h"
#include "resume/setting_changes.h"
#include "settings/settings.h"
#include "training/checkpointer.h"
#include "training/model_source.h"
#include "training/plan/make_plan.h"
#include "training/upcycled_weights.h"
#include "training/whole_model.h"

namespace megatron::training {

// A run without its files: what plans are made of. Needs no --lr, and --train-iters is 1 where not
// given.
struct SettledRun {
  settings::TrainSettings settings;
  corpus::Vocabulary vocabulary;
  models::Model model;
  std::vector<SettingNote> notes;  // settings that were derived or changed
  bool stands_in = false;          // the tokenizer knows the number of tokens only
};

// What all ranks share.
struct RunPlan : SettledRun {
  double began = 0;  // seconds of the steady clock
  corpus::Corpus corpus;
  resume::Beginning beginning;
  std::optional<UpcycledWeights> upcycled;  // what beginning.weights, a dense model's, become
  // Tokens of beginning.weights if they have fewer than the model; 0 if they have as many.
  int64_t stored_tokens = 0;
  std::optional<resume::SaveDirectory::Lock> lock;  // of --save
  SavedFiles saved;                                 // of the checkpoints
  // Tokens that end the samples of --sample-interval.
  std::vector<int32_t> end_tokens;
  WholeModel whole;  // their tensors; empty where none is read or written
  optim::LearningRate learning_rate;
  optim::WeightDecay weight_decay;
  std::vector<resume::SettingChange> changes;  // of a resumed run, others than the checkpoint's
  int64_t train_samples = 0;                   // asked of the training set
  plan::Plan expected;                         // what the run will need

  int64_t first_iteration() const { return beginning.state.iteration; }  // steps done before
  // At its end, once: on the third share of --split, or on test data of their own, if there are
  // any.
  bool evaluates_test_set() const;
  int64_t iterations_left() const;  // 0 for a run that is done
  // That the run will have consumed at its end, where the batches of its first part were others,
  // too.
  int64_t last_sample() const;
};

// Opens no data; where a tokenizer's files are not here, its type gives the number of tokens, and a
// note says so.
SettledRun settle_run(const settings::TrainSettings& given);

// Checks everything that a user can get wrong, and opens the data. Throws Error naming the value,
// the limit and the flag. processes: those of the run. composed: TrainHooks.
RunPlan make_run_plan(const settings::TrainSettings& given, comm::Group& processes,
                      const std::function<models::Model(const models::Model&)>& composed = {});

}  // namespace megatron::training
