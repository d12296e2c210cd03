// Scratch memory of CUDA's sums of the router's losses. It is requested by the kernel, and by meta
// when a run is planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/router_loss.h"

namespace megatron::kernels::cuda {

// The tokens of a segment are summed in at most 256 blocks of at least 32 tokens.
struct RouterBlocks {
  explicit RouterBlocks(const RouterSumsArgs& args);
  int64_t segments, tokens;  // tokens per segment
  int64_t height, count;     // per segment
};

// Each block's sums, [S, blocks, 2 E + 2] of the type of logits: of p, counts, squares and entropy.
Tensor router_sums_scratch(const RouterSumsArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
