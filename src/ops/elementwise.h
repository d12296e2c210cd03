#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// a + b, of equal shapes.
Var add(Tape& tape, const Var& a, const Var& b);

// x * keep / (1 - p), x [B*S, C] or the rows of it that the mask names. The mask depends on an
// element's identity (kernels/dropout.h). p = 0: returns x itself.
Var dropout(Tape& tape, const Var& x, const kernels::DropoutArgs::Mask& mask);

}  // namespace megatron::ops
