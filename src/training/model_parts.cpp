#include "training/model_parts.h"

#include "base/error.h"

namespace megatron::training {

ModelParts::ModelParts(const models::Model& model, const parallel::Ranks& ranks,
                       const parallel::LayerPlacement& placement, Runtime& runtime, DType type,
                       uint64_t seed) {
  const parallel::PipelineShape& shape = ranks.pipeline();
  const std::vector<parallel::ModelPart> parts =
      parallel::place_layers(model->num_layers(), shape, placement);
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    const auto virtual_stage = static_cast<size_t>(shape.virtual_stage(ranks.stage(), chunk));
    owned_.push_back(model.build(runtime, type, seed, parts[virtual_stage], ranks.modules()));
    chunks_.push_back(owned_.back().get());
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

}  // namespace megatron::training
