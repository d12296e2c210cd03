// Checks and completes the settings of a training run as far as possible without files, in stages,
// each of which is a function from settings to settings.
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

// Settings after a stage, with a note for each setting that it derived or whose effect it changed.
struct Settled {
  settings::TrainSettings settings;
  std::vector<SettingNote> notes = {};

  // Applies one more stage.
  template <class Stage, class... More>
  void pass(Stage&& stage, const More&... more) {
    Settled next = stage(std::move(settings), more...);
    settings = std::move(next.settings);
    notes.insert(notes.end(), next.notes.begin(), next.notes.end());
  }
};

// Sets the initial model of --moe-use-upcycling: the dense model named by --load or
// --pretrained-checkpoint becomes --model. A new run then does not resume from it.
Settled take_dense_model(settings::TrainSettings settings);
// As in Megatron-LM, --eval-iters 0 means no evaluation.
Settled leave_out_evaluation(settings::TrainSettings settings);
// Sets --hybrid-layer-pattern of a hybrid that is given by --num-layers: from the shares of the
// kinds of layers, or with only --spec, all state spaces.
Settled allocate_layers(settings::TrainSettings settings);
// The bars of --hybrid-layer-pattern place the layers on pipeline stages.
Settled place_by_pattern(settings::TrainSettings settings);
// Sets the number of ranks to the smallest that the parallel sizes need; for a plan, also the
// machines of the ranks.
Settled count_ranks(settings::TrainSettings settings);
// Sets batch sizes, their schedule, and the number of steps.
Settled count_batches(settings::TrainSettings settings);
// Sets the number of steps of --epochs passes over a training set of this many rows.
Settled count_epochs(settings::TrainSettings settings, int64_t rows);
// --pretrained-checkpoint is --load with --finetune until --load has a checkpoint.
Settled take_pretrained(settings::TrainSettings settings, bool load_has_checkpoint);
// Uses the tokenizer in the model's directory unless flags name another one.
Settled take_tokenizer(settings::TrainSettings settings, const std::string& directory);
// Settles how a model of this shape is divided. Call after settle().
Settled divide(settings::TrainSettings settings, const models::Model& model);
// Checks --freeze, and notes how many parameters are trained. Throws Error if a pattern fits
// nothing.
Settled freeze(settings::TrainSettings settings, const models::Model& model);

// Settles everything that flags determine: ranks, batch sizes, precision, evaluation, checkpoints,
// log and data. Throws Error naming the flag, its value and the limit.
Settled settle(const settings::TrainSettings& given);

// The same for a planned run: --lr, --train-iters and data are not required (the default is one
// step, or as many as the growth of the batch size takes), and the ranks need not be available.
Settled settle_planned(const settings::TrainSettings& given);

// Throws Error unless the model has a position for each token.
void check_length(const settings::BatchSettings& batch, const models::Model& model);

// Throws Error for a command line that `megatron train` (planned: `megatron plan`) refuses without
// opening a file: tokenizers, data, model directories, checkpoints and anything that depends on the
// vocabulary are not checked.
void check_settings(const settings::TrainSettings& given, bool planned);

// Numbers of samples that a run requests from its train, valid and test sets, which determine their
// order; nullopt: one pass. extended: numbers that they serve with --extend-to-iters; 0: no
// extension.
struct RunSamples {
  std::array<std::optional<int64_t>, 3> asked;
  std::array<int64_t, 3> extended{};
};
// Call after settle(). last_sample: the last sample that the run reaches. Throws Error on overflow.
RunSamples samples_of_run(const settings::TrainSettings& settings, int64_t last_sample);

}  // namespace megatron::training
