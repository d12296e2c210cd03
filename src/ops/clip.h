// Values confined to an interval.
#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// min(max(x, -limit), limit), limit > 0; x [T,N], rows at any stride, or heads [B,S,N,D] side by side
// within a token's row, tokens at any stride; the result dense. The gradient passes where -limit <= x <=
// limit. Saves x.
Var clip(Tape& tape, const Var& x, double limit);

}  // namespace megatron::ops
