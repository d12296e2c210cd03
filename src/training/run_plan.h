// Everything about a training run that is known before step 0, after its settings have been
// checked.
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

// A run without its files, from which plans are made. --lr is not required, and --train-iters
// defaults to 1.
struct SettledRun {
  settings::TrainSettings settings;
  corpus::Vocabulary vocabulary;
  models::Model model;
  std::vector<SettingNote> notes;  // settings that were derived or changed
  bool stands_in = false;          // the tokenizer knows the number of tokens only
};

// Data shared by all ranks.
struct RunPlan : SettledRun {
  double began = 0;  // seconds of the steady clock
  corpus::Corpus corpus;
  resume::StartingPoint start;
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

  int64_t first_iteration() const { return start.state.iteration; }  // steps done before
  // True if the run evaluates once at its end on the third share of --split, or on separate test
  // data, if any.
  bool evaluates_test_set() const;
  int64_t iterations_left() const;  // 0 for a run that is done
  // Number of samples that the run will have consumed at its end, also if earlier parts of it used
  // other batch sizes.
  int64_t last_sample() const;
};

// Does not open data. If a tokenizer's files are missing, the number of tokens is taken from its
// type, and a note says so.
SettledRun settle_run(const settings::TrainSettings& given);

// Checks all user input and opens the data. Throws Error naming the value, the limit and the flag.
// processes: those of the run. composed: see TrainHooks.
RunPlan make_run_plan(const settings::TrainSettings& given, comm::Group& processes,
                      const std::function<models::Model(const models::Model&)>& composed = {});

}  // namespace megatron::training
