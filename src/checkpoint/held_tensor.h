// What a rank holds of the tensors of a checkpoint: weights and optimizer state alike.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/placement.h"

namespace megatron::checkpoint {

// `value` is of the shape of the parameter that `placement` belongs to. Its parts are stored under
// prefix + their canonical names: "" for weights, "exp_avg." for a moment.
struct HeldTensor {
  std::string prefix;
  const parallel::Placement* placement = nullptr;  // outlives this
  Tensor value;
};

std::vector<HeldTensor> held(std::span<parallel::Placed* const> parameters);  // prefix ""

}  // namespace megatron::checkpoint
