#include "training/trained_model.h"

#include "base/error.h"
#include "training/whole_model.h"

namespace megatron::training {
namespace {

StepOptions completed(StepOptions options, const models::Model& model,
                      const FrozenParameters& frozen, const parallel::PipelineShape& shape,
                      const parallel::LayerPlacement& placement) {
  options.pipeline.first_trained = frozen.first_trained(model, shape, placement);
  return options;
}

parallel::RanksOptions completed(parallel::RanksOptions ranks, const models::Model& model) {
  const int64_t given = std::ssize(ranks.context_exchange);
  MG_CHECK(
      given <= 1 || given == model->num_layers(),
      "--cp-comm-type has {} values: give one for all layers, or one for each of the {} layers",
      given, model->num_layers());
  ranks.cut_by_document = !model->facts().state_space;
  return ranks;
}

}  // namespace

ModelParts::ModelParts(const models::Model& model, const parallel::Ranks& ranks,
                       const parallel::LayerPlacement& placement, Runtime& runtime, DType type,
                       uint64_t seed, const FrozenParameters& frozen) {
  const parallel::PipelineShape& shape = ranks.pipeline();
  const std::vector<parallel::ModelPart> parts =
      parallel::place_layers(model->num_layers(), shape, placement);
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    const auto virtual_stage = static_cast<size_t>(shape.virtual_stage(ranks.stage(), chunk));
    owned_.push_back(model.build(runtime, type, seed, parts[virtual_stage], ranks.modules()));
    chunks_.push_back(owned_.back().get());
    for (parallel::ParameterSpec* placed : chunks_.back()->parameters())
      placed->use_stages =
          parallel::stages_of_uses(placed->used_in, model->num_layers(), parts, shape);
    frozen.apply(*chunks_.back());
  }
}

const models::Stage& ModelParts::whole() const {
  MG_ASSERT(chunks_.size() == 1 && chunks_[0]->part().embedding && chunks_[0]->part().head);
  return *chunks_[0];
}

std::vector<parallel::ParameterSpec*> ModelParts::parameters() const {
  std::vector<parallel::ParameterSpec*> parameters;
  for (const models::Stage* chunk : chunks_)
    parameters.insert(parameters.end(), chunk->parameters().begin(), chunk->parameters().end());
  return parameters;
}

TrainedModel::TrainedModel(const models::Model& model, DType type, uint64_t seed,
                           const ModelLayout& layout, comm::Group& world, Runtime& run_time,
                           StepOptions options)
    : runtime(run_time),
      frozen(FrozenParameters::any(model, options.freeze) ? FrozenParameters(model, options.freeze)
                                                          : FrozenParameters()),
      ranks(completed(layout.ranks, model), world),
      parts(model, ranks, layout.layers, runtime, type, seed, frozen),
      step(parts.chunks(), type, ranks, runtime,
           completed(std::move(options), model, frozen, ranks.pipeline(), layout.layers)),
      loss_pass({.chunks = parts.chunks(),
                 .type = type,
                 .ranks = &ranks,
                 .parameters = &step.data_parallel()},
                runtime, step.options()) {}

void TrainedModel::initialize(uint64_t value_seed) {
  for (const parallel::Shard& shard : shards())
    parallel::initialize(shard, value_seed, runtime.stream());
  nn::initialize(step.states(), value_seed, runtime.stream());
}

std::vector<checkpoint::HeldTensor> TrainedModel::held() const {
  return held_weights(step.shards(), step.states());
}

}  // namespace megatron::training
