#pragma once

#include "ops/attention.h"

namespace megatron::ops {

// Rotates x [B,S,N,D] by its positions (kernels/rope.h) in place: nothing else may read x, before
// or after. Backward rotates the gradient back.
Var rotate(Tape& tape, Var&& x, const Rotary& rotary);

}  // namespace megatron::ops
