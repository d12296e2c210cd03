#include "training/reference_pass.h"

#include "models/adapters/adapter_rules.h"

namespace megatron::training {
namespace {

ModelParts frozen_parts(TrainedModel& trained, const models::Model& model, DType type,
                        const parallel::LayerPlacement& placement) {
  const models::Model plain = model->with({.leaves_low_precision = true});
  ModelParts parts(plain, trained.ranks, placement, trained.runtime, type, 0, FrozenParameters());
  for (parallel::ParameterSpec* placed : parts.parameters()) placed->parameter.trainable = false;
  return parts;
}

void fill_by(LossPass& pass, std::span<corpus::HostBatch> micro_batches) {
  pass.begin("reference log-probabilities");
  pass.run_values(micro_batches, [&](int micro_batch, std::vector<double> values) {
    corpus::set_reference(micro_batches[static_cast<size_t>(micro_batch)], std::move(values));
  });
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
  fill_by(pass_, micro_batches);
}

BaseReference::BaseReference(TrainedModel& trained, DType type)
    : trained_(trained),
      pass_({.chunks = trained.parts.chunks(),
             .type = type,
             .ranks = &trained.ranks,
             .parameters = &trained.step.data_parallel()},
            trained.runtime, trained.step.options()) {
  pass_.use_adapters(false);
}

void BaseReference::fill(const data::Dataset&, std::span<corpus::HostBatch> micro_batches) {
  const models::HighPrecision plain(trained_.parts.chunks());
  fill_by(pass_, micro_batches);
}

bool has_base_reference(const models::Model& model, const settings::DataSettings& settings) {
  return model->adapter() != nullptr && !settings.reference_model &&
         !settings.precompute_reference && models::leaves_model(*model->adapter());
}

}  // namespace megatron::training
