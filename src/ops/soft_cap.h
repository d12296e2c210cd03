#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// cap * tanh(x / cap); cap 0: x itself. Saves the result where the tape records.
Var soft_cap(Tape& tape, const Var& x, double cap);

}  // namespace megatron::ops
