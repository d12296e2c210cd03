#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// Plain: out = f(x), x [T,F]. Gated: x [T,2F] = [gate | up], out [T,F] = f(gate) * up (Shazeer
// 2020). Saves x.
Var activation(Tape& tape, const Var& x, kernels::Activation function, bool gated);

}  // namespace megatron::ops
