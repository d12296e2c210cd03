#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// factor * x; factor 1: x itself.
Var scale(Tape& tape, const Var& x, double factor);

}  // namespace megatron::ops
