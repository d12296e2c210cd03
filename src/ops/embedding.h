#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// out[t,:] = table[ids[t],:].   ids i32 [T], table [V,H], out [T,H].   Gradient: rows added in
// ascending t.
Var embedding(Tape& tape, const Tensor& ids, const Weight& table);

}  // namespace megatron::ops
