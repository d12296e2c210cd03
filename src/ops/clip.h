// Clips values to an interval.
#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// min(max(x, -limit), limit), limit > 0; x [T,N], rows with any stride, or heads [B,S,N,D],
// contiguous within a token's row, tokens with any stride; the result is dense. The gradient passes
// where -limit <= x <= limit. Saves x.
Var clip(Tape& tape, const Var& x, double limit);

}  // namespace megatron::ops
