#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// cap * tanh(x / cap); cap 0: returns x itself. Saves the result if the tape records.
Var soft_cap(Tape& tape, const Var& x, double cap);

}  // namespace megatron::ops
