// Table lookup.
#pragma once

#include "kernels/norm.h"
#include "tensor/tensor.h"

namespace megatron::kernels {

// out[t,:] = table[ids[t],:]. ids i32 [T] in [0, V) (checked when the data is read), table [V,H],
// out [T,H], one type.
struct EmbeddingArgs {
  Tensor ids, table, out;
};

// dtable = sum over t in ascending order of dout[t,:] into row ids[t], + beta * dtable; dtable
// [V,H] f32 (f64 for f64).
struct EmbeddingBackwardArgs {
  Tensor ids, dout;
  Accumulate dtable;
};

}  // namespace megatron::kernels
