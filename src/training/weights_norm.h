// The length of a model's weights.
#pragma once

#include <span>

#include "device/stream.h"
#include "parallel/placement.h"

namespace megatron::training {

// L2 norm over all elements of this rank's parameters: sums of squares of fixed blocks, added in
// f64 in the parameters' order.
double weights_norm(std::span<parallel::Placed* const> parameters, Runtime& runtime);

}  // namespace megatron::training
