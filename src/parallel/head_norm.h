// Norms of queries and keys with heads divided among the ranks of a TensorParallel.
#pragma once

#include "ops/head_norm.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

// x [B,S,N,D], with this rank's N heads. full_width 0: each head is normalised by itself. Otherwise
// all heads of a token together, full_width elements on all ranks; weight and bias are then [N D],
// for this rank's heads. Result [B,S,N,D], dense.
Var head_norm(Tape& tape, const Var& x, const ops::HeadNorm& norm, int64_t full_width,
              const TensorParallel& tp);

}  // namespace megatron::parallel
