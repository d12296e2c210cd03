// What a run must know, beside the tensors, to go on as if it had never stopped: trainer_state.json.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "optim/schedule.h"
#include "training/settings.h"

namespace megatron::training {

// Samples, learning rate and random numbers of every later step follow from these: data samplers from
// consumed_samples, the schedules from it, dropout from (seed, sample, position).
struct TrainerState {
  int64_t iteration = 0;         // steps done
  int64_t consumed_samples = 0;  // of all steps up to this one
  int64_t seed = 1234;           // of dropout
  std::string precision;         // "bf16": of the weights
  std::string optimizer;         // "adam"
  int64_t optimizer_steps = 0;   // updates that its state has seen
  bool has_optimizer = true;     // its state was saved
  optim::LearningRate learning_rate;
  optim::WeightDecay weight_decay;
  Json data;    // flags that decide which sample comes when, as text: {"seq-length": "1024", ...}
  Json layout;  // of the ranks that saved; for people

  Json to_json() const;
  // Throws Error naming the key that is missing, or whose value cannot be, and `path`.
  static TrainerState from_json(const Json& json, const std::string& path);
};

// The state's `data` of a run.
Json data_settings(const TrainSettings& settings);

// Sizes of the layout, by name.
Json layout_of(const TrainSettings& settings);

// What differs between two schedules, as "lr 0.001 and 0.003; ..."; empty: nothing.
std::string schedule_differences(const TrainerState& saved, const optim::LearningRate& rate,
                                 const optim::WeightDecay& decay);
// The same of two objects of text.
std::string differences(const Json& saved, const Json& now);

}  // namespace megatron::training
