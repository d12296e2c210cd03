// Multiplies a value by the sigmoid of another.
#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// x * sigmoid(gate); x, gate [T,N], rows with any stride; the result is dense. Saves x and gate.
Var gate(Tape& tape, const Var& x, const Var& gate);

}  // namespace megatron::ops
