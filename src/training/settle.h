// Settings of a training run, checked and filled in as far as that takes no file: by stages, of
// which each is a function from settings to those that follow.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/setting_note.h"
#include "models/model.h"
#include "settings/settings.h"

namespace megatron::training {

// Settings after a stage, with a note for each that it derived or that will have another effect.
struct Settled {
  settings::TrainSettings settings;
  std::vector<SettingNote> notes = {};

  // After one more stage, too.
  template <class Stage, class... More>
  void pass(Stage&& stage, const More&... more) {
    Settled next = stage(std::move(settings), more...);
    settings = std::move(next.settings);
    notes.insert(notes.end(), next.notes.begin(), next.notes.end());
  }
};

// The model that --moe-use-upcycling begins with: what --load says of the dense one is what --model
// says; a run that has not begun resumes nothing.
Settled take_dense_model(settings::TrainSettings settings);
// As in Megatron-LM, --eval-iters 0 means no evaluation.
Settled leave_out_evaluation(settings::TrainSettings settings);
// The least that parallel sizes need; of a plan, the machines that they are on.
Settled count_ranks(settings::TrainSettings settings);
// Batch sizes, their schedule, and the number of steps.
Settled count_batches(settings::TrainSettings settings);
// --pretrained-checkpoint is --load with --finetune until --load has a checkpoint.
Settled take_pretrained(settings::TrainSettings settings, bool load_has_checkpoint);
// The tokenizer that lies in the directory of the model, where flags name no other.
Settled take_tokenizer(settings::TrainSettings settings, const std::string& directory);
// How a model of this shape is divided, after settle().
Settled divide(settings::TrainSettings settings, const models::Model& model);

// All that the flags say: of ranks, batch sizes, precision, evaluation, checkpoints, log and data.
// Throws Error naming the flag, its value and the limit.
Settled settle(const settings::TrainSettings& given);

// The same of a run that is planned: --lr and --train-iters need not be given (one step is taken,
// or so many that the batch size has grown), nor data, and the ranks need not be here.
Settled settle_planned(const settings::TrainSettings& given);

// That the model has a position for each token. Throws Error.
void check_length(const settings::BatchSettings& batch, const models::Model& model);

// Throws Error for a command line that `megatron train` (planned: `megatron plan`) refuses without
// opening a file: tokenizers, data, model directories and checkpoints are not looked for, nor is
// what hangs on the vocabulary.
void check_settings(const settings::TrainSettings& given, bool planned);

// Samples that a run asks of its train, valid and test sets, which decide their order; none: one
// pass. extended: those that they serve with --extend-to-iters, 0: no more.
struct RunSamples {
  std::array<std::optional<int64_t>, 3> asked;
  std::array<int64_t, 3> extended{};
};
// After settle(). last_sample: that the run comes to. Throws Error for more than can be counted.
RunSamples samples_of_run(const settings::TrainSettings& settings, int64_t last_sample);

}  // namespace megatron::training
