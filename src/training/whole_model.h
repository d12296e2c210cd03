// All tensors of a model and of its optimizer, as checkpoints name them, whichever ranks hold them.
#pragma once

#include <vector>

#include "checkpoint/held_tensor.h"
#include "models/model.h"
#include "optim/optimizer.h"

namespace megatron::training {

struct WholeModel {
  std::vector<checkpoint::WholeTensor> weights, optimizer;
};

// Without an optimizer: weights alone.
WholeModel whole_model(const models::Model& model, DType type,
                       const optim::OptimizerConfig* optimizer = nullptr);

// What this rank holds of an optimizer's state.
std::vector<checkpoint::HeldTensor> held_states(const optim::Optimizer& optimizer);

}  // namespace megatron::training
