// CUDA's table lookup; contracts in kernels/embedding.h.
#pragma once

#include "device/stream.h"
#include "kernels/embedding.h"

namespace megatron::kernels::cuda {

void embedding(const EmbeddingArgs& args, Stream& stream);
// A row that more than 64 tokens name is the sum of eight sums, each of neighbouring tokens, in
// their order.
void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
