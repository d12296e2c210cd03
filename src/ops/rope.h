#pragma once

#include "ops/attention.h"

namespace megatron::ops {

// x [B,S,N,D] rotated by its positions (kernels/rope.h), where it lies: nobody else may read x, before or
// after. Backward rotates the gradient back.
Var rotate(Tape& tape, Var&& x, const Rotary& rotary);

}  // namespace megatron::ops
