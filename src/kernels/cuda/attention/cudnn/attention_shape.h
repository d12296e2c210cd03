// The properties of a call on which an attention plan depends.
#pragma once

#include <cudnn.h>

#include <compare>

#include "kernels/cuda_scratch/library_attention.h"

namespace megatron::kernels::cuda::cudnn {

// Strides in elements between samples, heads and tokens.
struct Strides {
  int64_t sample = 0, head = 0, token = 0;
  auto operator<=>(const Strides&) const = default;
};

struct AttentionShape {
  int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1;
  int64_t width = 1, value_width = 1;
  cudnnDataType_t type = CUDNN_DATA_BFLOAT16;
  bool causal = true;
  Strides q = {}, k = {}, v = {}, out = {};
  Strides dout = {}, dq = {}, dk = {}, dv = {};  // backward only
  auto operator<=>(const AttentionShape&) const = default;
};

// Shape of a call's parts.
AttentionShape shape_of(const AttentionArgs& args, const LibraryAttentionPart& part);
AttentionShape shape_of(const AttentionBackwardArgs& args, const LibraryAttentionPart& part);

}  // namespace megatron::kernels::cuda::cudnn
