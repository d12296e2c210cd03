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
#include "training/reference_weights.h"
#include "training/task.h"
#include "training/upcycled_weights.h"
#include "training/whole_model.h"

namespace megatron::training {

// A run without its files, from which plans are made. --lr is not required, and --train-iters
// defaults to 1.
struct SettledRun {
  settings::TrainSettings settings;
  corpus::Vocabulary vocabulary;
  models::Model model;
  std::shared_ptr<const Task> task;  // null: next tokens
  std::vector<SettingNote> notes;    // settings that were derived or changed
  bool stands_in = false;            // the tokenizer is a stand-in that only has a number of tokens
};

// Data shared by all ranks.
struct RunPlan : SettledRun {
  double began = 0;  // seconds of the steady clock
  corpus::Corpus corpus;
  resume::StartingPoint start;
  std::optional<UpcycledWeights>
      upcycled;           // how a dense model's start.weights become a model with experts
  bool new_head = false;  // start.weights have another head: the model's is newly initialized
  // Number of tokens in start.weights if smaller than the model's; otherwise 0.
  int64_t stored_tokens = 0;
  std::string base;  // fingerprint of the model that an adapter is trained for; "": no adapter
  Json examples;     // as in resume::TrainerState
  std::optional<ReferenceWeights> reference;  // of the task's reference model, if it needs one
  std::optional<resume::SaveDirectory::Lock> lock;  // lock on the --save folder
  SavedFiles saved;                                 // files besides the tensors of each checkpoint
  // Tokens that end the samples of --sample-interval.
  std::vector<int32_t> end_tokens;
  WholeModel whole;  // tensors of checkpoints; empty if none is read or written
  optim::LearningRate learning_rate;
  optim::WeightDecay weight_decay;
  std::vector<resume::SettingChange>
      changes;                // settings of a resumed run that differ from the checkpoint's
  int64_t train_samples = 0;  // number requested from the training set
  plan::Plan expected;        // resources that the run will need

  // True if the run trains an adapter that its first weights do not have.
  bool new_adapter() const {
    return model->adapter() != nullptr && start.weights != nullptr && !start.weights->is_adapter();
  }
  int64_t first_iteration() const { return start.state.iteration; }  // steps done before
  // True if the run evaluates once at its end on the third share of --split, or on separate test
  // data, if any.
  bool evaluates_test_set() const;
  int64_t iterations_left() const;  // 0 if the run is complete
  // Number of samples that the run will have consumed at its end, also if earlier parts of it used
  // other batch sizes.
  int64_t last_sample() const;
};

// Does not open data. If a tokenizer's files are missing, the number of tokens is taken from its
// type, and a note says so.
SettledRun settle_run(const settings::TrainSettings& given,
                      std::shared_ptr<const Task> task = nullptr);

// Checks all user input and opens the data. Throws Error naming the value, the limit and the flag.
// processes: those of the run. composed and task: see TrainHooks.
RunPlan make_run_plan(const settings::TrainSettings& given, comm::Group& processes,
                      const std::function<models::Model(const models::Model&)>& composed = {},
                      std::shared_ptr<const Task> task = nullptr);

}  // namespace megatron::training
