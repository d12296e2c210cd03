// One rank's part of a model in training: groups, chunks, step and evaluation, created together.
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
  // Collective over `world`. Parameters have memory but no values: fill shards(), then call
  // step.begin(). seed: for dropout. If options.hidden is 0, the model's value is used.
  TrainedModel(const models::Model& model, DType type, uint64_t seed, const ModelLayout& layout,
               comm::Group& world, Runtime& runtime, StepOptions options);
  TrainedModel(const TrainedModel&) = delete;
  TrainedModel& operator=(const TrainedModel&) = delete;

  std::span<const parallel::Shard> shards() const { return step.shards(); }
  // This rank's part of the model's tensors: shards, then states.
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
