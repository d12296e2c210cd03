#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// Plain: out = f(x), x [T,F]. Gated: x [T,2F] = [gate | up], out [T,F] = f(gate) * up (Shazeer
// 2020), or with a clamp and an offset as in kernels/activation.h. Saves x.
Var activation(Tape& tape, const Var& x, kernels::Activation function, bool gated, double clamp = 0,
               double up_offset = 0);

}  // namespace megatron::ops
