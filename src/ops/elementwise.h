#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// a + b, of equal shapes.
Var add(Tape& tape, const Var& a, const Var& b);

// x itself, as a Var whose gradient is summed separately and then added to that of x. The order of
// a sum over many uses of x is then the same when another stage or a recomputed layer has some of
// them.
Var summed_apart(Tape& tape, const Var& x);

// x * keep / (1 - p), x [B*S, C] or the rows of it that the mask names. The mask depends on an
// element's identity (kernels/dropout.h). p = 0: returns x itself.
Var dropout(Tape& tape, const Var& x, const kernels::DropoutArgs::Mask& mask);

}  // namespace megatron::ops
