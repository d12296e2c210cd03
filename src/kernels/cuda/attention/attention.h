// Attention on CUDA; contracts in kernels/attention.h. The library's where it takes the call
// (library_attention.h), else our own: f32, bf16 and f16, heads up to kAttentionWidth wide (an
// Error for others). On tensor cores (on_tensor_cores) weights and gradients of scores are rounded
// to the type of the tensors before their products, as the library does.
#pragma once

#include "device/stream.h"
#include "kernels/attention.h"

namespace megatron::kernels::cuda {

void attention(const AttentionArgs& args, Stream& stream);
void attention_backward(const AttentionBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
