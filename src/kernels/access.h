// Access of a kernel to the tensors of its arguments. Each kernel's header declares it: visit(args,
// f) calls f(name, access, tensor) for every tensor of `args`, including undefined ones, always in
// the same order; `tensor` is a Tensor&, so that f may replace it. Code that inspects calls from
// outside relies on it: plans, traces, the search for NaN, and number formats that are computed by
// widening.
#pragma once

#include "tensor/tensor.h"

namespace megatron::kernels {

enum class Access { read, write, update };  // update: read and written

// Destination of a weight gradient: out = gradient + beta * out, beta 0 or 1; with 0, out is not
// read.
struct Accumulate {
  Tensor out;
  float beta = 0;
};

inline Access written(float beta) { return beta == 0 ? Access::write : Access::update; }

}  // namespace megatron::kernels
