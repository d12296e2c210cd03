// Settings of a training run, checked and filled in as far as that takes no file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/setting_note.h"
#include "models/model.h"
#include "settings/settings.h"

namespace megatron::training {

// Ranks, batch sizes, precision, and what of evaluation, checkpoints, log and data the flags say.
// Throws Error naming the flag, its value and the limit.
void settle(settings::TrainSettings& settings);

// The same of a run that is planned: --lr and --train-iters need not be given (one step is taken,
// or so many that the batch size has grown), nor data, and the ranks need not be here.
void settle_planned(settings::TrainSettings& settings);

// How a model of this shape is divided, after settle(). Notes of what has no effect, or another.
std::vector<SettingNote> settle_layout(settings::TrainSettings& settings,
                                       const models::Model& model);

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
