#include "training/whole_model.h"

#include "training/trained_model.h"

namespace megatron::training {

WholeModel whole_model(const models::Model& model, DType type,
                       const optim::OptimizerConfig* optimizer) {
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const std::unique_ptr<comm::Group> alone = comm::single();
  TrainedModel trained(model, type, 0, {}, *alone, shapes_only, {});
  WholeModel whole{.weights = checkpoint::whole_tensors(checkpoint::held(trained.shards()))};
  if (optimizer == nullptr) return whole;
  trained.step.begin(*optimizer);
  whole.optimizer = checkpoint::whole_tensors(held_states(trained.step.optimizer()));
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
