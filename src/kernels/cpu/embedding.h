// The host's table lookup; contracts in kernels/embedding.h.
#pragma once

#include "device/stream.h"
#include "kernels/embedding.h"

namespace megatron::kernels::cpu {

void embedding(const EmbeddingArgs& args, Stream& stream);
void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream);
// What a call of it takes of the scratch arena.
Tensor embedding_backward_scratch(const EmbeddingBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
