// How a kernel uses the tensors of its arguments. Each kernel's header says it of its own: visit(args, f) calls
// f(name, access, tensor) for every tensor of `args`, undefined ones too, always in the same order; `tensor` is a Tensor&,
// so that f may put another one in its place. Whoever looks at calls from outside goes by it: plans, traces, the search
// for NaN, number formats that are computed by widening.
#pragma once

#include "tensor/tensor.h"

namespace megatron::kernels {

enum class Access { read, write, update };  // update: read and written

// Where a weight gradient goes: out = gradient + beta * out, beta 0 or 1; with 0 out is not read.
struct Accumulate {
  Tensor out;
  float beta = 0;
};

inline Access written(float beta) { return beta == 0 ? Access::write : Access::update; }

}  // namespace megatron::kernels
