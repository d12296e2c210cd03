// trainer_state.json: the state of a run, besides the tensors, that it needs to continue as if it
// had never stopped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "optim/loss_scale.h"
#include "optim/schedule.h"
#include "settings/settings.h"

namespace megatron::resume {

// Determines samples, learning rate and random numbers of every later step: data samplers use
// consumed_samples, the schedules scheduled_samples, dropout (seed, sample, position).
struct TrainerState {
  int64_t iteration = 0;         // finished steps
  int64_t consumed_samples = 0;  // by all steps up to this one
  // By steps that updated the weights: the position in the schedules.
  int64_t scheduled_samples = 0;
  int64_t skipped_steps = 0;    // steps that did not
  int64_t seed = 1234;          // dropout seed
  std::string precision;        // precision of the weights: "bf16"
  std::string optimizer;        // "adam"
  int64_t optimizer_steps = 0;  // updates included in its state
  bool has_optimizer = true;    // whether its state was saved
  Json optimizer_settings =
      Json::Object{};  // flags of its update rules, as text: {"adam-beta1": "0.9", ...}
  // Other settings that affect the numbers (setting_changes.h), as text; empty in older
  // checkpoints.
  Json settings = Json::Object{};
  std::optional<optim::LossScale::State> loss_scale;  // only with dynamic scaling
  optim::LearningRate learning_rate;
  optim::WeightDecay weight_decay;
  // Flags that determine the order of samples, as text: {"seq-length": "1024", ...}, and
  // "train-samples", the number requested from the data set.
  Json data;
  int64_t train_iters = 0;  // length of the run without --extend-to-iters; 0: an older checkpoint
  Json layout;              // layout of the ranks that saved; informative only
  // Fingerprints of the files with the training examples by path, in their order; null: the run
  // reads no such files.
  Json examples;
  std::string reference;  // fingerprint of the reference model's weights; "": the run has none
  std::string base;       // fingerprint of the model that an adapter belongs to; "": no adapter
  // Choices of --gemm-tuning on, as training/gemm_choices.h writes them; else null.
  Json gemm_tuning;

  Json to_json() const;
  // Throws Error naming `path` and the key that is missing or has an invalid value.
  static TrainerState from_json(const Json& json, const std::string& path);
};

// The state's `data` for a run. train_samples: requested from the training set.
Json data_settings(const settings::TrainSettings& settings, int64_t train_samples);

// Returns --train-iters N or --train-samples N of the run that saved, and --extend-to-iters of
// `now`. Returns "" if `now` is not longer, or if an older checkpoint does not have the numbers.
std::string how_to_extend(const TrainerState& saved, const settings::BatchSettings& now);

// The layout by name: sizes, pipeline schedule and chunks per stage, sharding. num_layers: of the
// model.
Json layout_of(const settings::TrainSettings& settings, int64_t num_layers);

// A setting in which two schedules differ.
struct ScheduleDifference {
  std::string setting;  // "lr"
  std::string saved, now;
};
// Settings of a checkpoint's schedule that differ from those of `rate` and `decay`.
std::vector<ScheduleDifference> schedule_differences(const TrainerState& saved,
                                                     const optim::LearningRate& rate,
                                                     const optim::WeightDecay& decay);
// Decides which schedule a resumed run follows: `rate` and `decay` are those of its flags and are
// replaced by the checkpoint's if the settings say so. Throws Error naming the differences if the
// settings say nothing. path: the checkpoint's. longer: how_to_extend().
void settle_schedule(const TrainerState& saved, const std::string& path,
                     const settings::CheckpointSettings& settings, optim::LearningRate& rate,
                     optim::WeightDecay& decay, const std::string& longer = "");

// The state's `optimizer_settings` for a run: the flags of the rules in use.
Json optimizer_settings(const settings::OptimizerSettings& settings);

// Differences between two objects of text, in one line. Of two lists of objects only the first
// elements that differ are compared.
std::string differences(const Json& saved, const Json& now);

}  // namespace megatron::resume
