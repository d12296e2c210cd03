// Multiplies a value by a constant.
#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// factor * x; returns x itself for a factor of 1. Backward needs no tensor.
Var scale(Tape& tape, const Var& x, double factor);

}  // namespace megatron::ops
