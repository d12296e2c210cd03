// A model in training, as one rank holds it: groups, chunks, step and evaluation, made together.
#pragma once

#include "checkpoint/held_tensor.h"
#include "training/loss_pass.h"
#include "training/model_parts.h"
#include "training/step.h"

namespace megatron::training {

struct ModelLayout {
  parallel::RanksOptions ranks;
  parallel::LayerPlacement layers;
};

struct TrainedModel {
  // Collective over `world`. Parameters have memory and no values: fill shards(), then
  // step.begin(). seed: of dropout. options.hidden is the model's where 0.
  TrainedModel(const models::Model& model, DType type, uint64_t seed, const ModelLayout& layout,
               comm::Group& world, Runtime& runtime, StepOptions options);
  TrainedModel(const TrainedModel&) = delete;
  TrainedModel& operator=(const TrainedModel&) = delete;

  std::span<const parallel::Shard> shards() const { return step.shards(); }
  // What this rank holds of the model's tensors: shards, then states.
  std::vector<checkpoint::HeldTensor> held() const;
  // Initial values of parameters and states, the same for any layout.
  void initialize(uint64_t value_seed);

  Runtime& runtime;
  parallel::Ranks ranks;
  ModelParts parts;
  TrainStep step;
  LossPass loss_pass;
};

}  // namespace megatron::training
