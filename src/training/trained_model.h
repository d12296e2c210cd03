// One rank's part of a model in training: groups, chunks, step and evaluation, created together.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "checkpoint/held_tensor.h"
#include "parallel/layer_layout.h"
#include "training/frozen_parameters.h"
#include "training/loss_pass.h"
#include "training/step.h"

namespace megatron::training {

struct ModelLayout {
  parallel::RanksOptions ranks;
  parallel::LayerPlacement layers;
};

// The part of a model that one rank of a run holds: one stage per chunk of ranks.pipeline(). Its
// parameters have no memory yet. Throws Error naming the flags if layers or heads cannot be
// distributed. seed: for dropout.
class ModelParts {
 public:
  ModelParts(const models::Model& model, const parallel::Ranks& ranks,
             const parallel::LayerPlacement& placement, Runtime& runtime, DType type, uint64_t seed,
             const FrozenParameters& frozen);

  std::span<models::Stage* const> chunks() const { return chunks_; }
  const models::Stage& chunk(size_t index) const { return *chunks_[index]; }
  // The whole model; only valid if this rank holds all of it.
  const models::Stage& whole() const;
  std::vector<parallel::ParameterSpec*> parameters() const;  // parameters of all chunks

 private:
  std::vector<std::unique_ptr<models::Stage>> owned_;
  std::vector<models::Stage*> chunks_;
};

struct TrainedModel {
  // Collective over `world`. Parameters have memory but no values: fill shards(), then call
  // step.begin(). seed: for dropout.
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
  FrozenParameters frozen;  // of options.freeze
  parallel::Ranks ranks;
  ModelParts parts;
  TrainStep step;
  LossPass loss_pass;
};

}  // namespace megatron::training
