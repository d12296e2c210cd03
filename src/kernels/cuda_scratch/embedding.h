// Scratch memory of CUDA's embedding gradient. The kernel requests it with this function, and so
// does meta when a run is planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/embedding.h"

namespace megatron::kernels::cuda {

// i32 words of the lists of tokens by row: a count and an end for each of V rows, two totals, T
// tokens, and up to min(V, T) rows that occur.
Tensor embedding_backward_scratch(const EmbeddingBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
