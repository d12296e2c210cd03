#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// y = x w^T + b.   x [T,in], w [out,in], b [out] or none, y [T,out].
// Weight gradients (dw = dy^T x, db = column sums of dy) go to their grad slots and can run apart
// from the input's (dx = dy w). memory: of y.
Var linear(Tape& tape, const Var& x, const Weight& weight, const Weight& bias = {},
           MemoryClass memory = MemoryClass::activations);

}  // namespace megatron::ops
