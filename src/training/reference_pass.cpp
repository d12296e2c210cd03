#include "training/reference_pass.h"

namespace megatron::training {
namespace {

ModelParts frozen_parts(TrainedModel& trained, const models::Model& model, DType type,
                        const parallel::LayerPlacement& placement) {
  ModelParts parts(model, trained.ranks, placement, trained.runtime, type, 0, FrozenParameters());
  for (parallel::ParameterSpec* placed : parts.parameters()) placed->parameter.trainable = false;
  return parts;
}

}  // namespace

ReferenceModel::ReferenceModel(TrainedModel& trained, const models::Model& model, DType type,
                               const parallel::LayerPlacement& placement)
    : parts_(frozen_parts(trained, model, type, placement)),
      data_parallel_(parts_.parameters(), spans_of(parts_.chunks()), trained.ranks.data_parallel(),
                     trained.runtime, trained.step.options().data_parallel),
      pass_({.chunks = parts_.chunks(),
             .type = type,
             .ranks = &trained.ranks,
             .parameters = &data_parallel_},
            trained.runtime, trained.step.options()) {}

std::vector<nn::ModuleState*> ReferenceModel::states() const {
  std::vector<nn::ModuleState*> states;
  for (const models::Stage* chunk : parts_.chunks())
    states.insert(states.end(), chunk->states().begin(), chunk->states().end());
  return states;
}

void ReferenceModel::fill(const data::Dataset&, std::span<corpus::HostBatch> micro_batches) {
  pass_.begin("reference log-probabilities");
  pass_.run_values(micro_batches, [&](int micro_batch, std::vector<double> values) {
    corpus::set_reference(micro_batches[static_cast<size_t>(micro_batch)], std::move(values));
  });
}

}  // namespace megatron::training
