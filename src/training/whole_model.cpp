#include "training/whole_model.h"

#include "training/trained_model.h"

namespace megatron::training {
namespace {

void add(std::vector<checkpoint::WholeTensor>& tensors, const std::string& prefix,
         const parallel::Placed& placed, DType type) {
  for (const parallel::Part& part : placed.placement.parts)
    tensors.push_back({prefix + part.name, part.stored_shape(), type});
}

}  // namespace

WholeModel whole_model(const models::GptConfig& config, DType type,
                       const optim::OptimizerConfig* optimizer) {
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const std::unique_ptr<comm::Group> alone = comm::single();
  TrainedModel model(config, type, 0, {}, *alone, shapes_only, {});
  WholeModel whole;
  for (const parallel::Shard& shard : model.shards()) add(whole.weights, "", *shard.placed, type);
  if (optimizer == nullptr) return whole;
  model.step.begin(*optimizer);
  for (const optim::Optimizer::State& state : model.step.optimizer().states())
    add(whole.optimizer, state.name + ".", *state.placed, state.value.dtype());
  return whole;
}

std::vector<checkpoint::HeldTensor> held_states(const optim::Optimizer& optimizer) {
  std::vector<checkpoint::HeldTensor> held;
  for (const optim::Optimizer::State& state : optimizer.states()) {
    held.push_back({.prefix = state.name + ".",
                    .placement = &state.placed->placement,
                    .value = state.value,
                    .shape = state.placed->parameter.value.shape(),
                    .begin = state.begin});
  }
  return held;
}

}  // namespace megatron::training
