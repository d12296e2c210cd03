#include "kernels/cuda_scratch/route.h"

#include <algorithm>

#include "base/divide.h"

namespace megatron::kernels::cuda {
RouterBlocks::RouterBlocks(const RouterSumsArgs& args)
    : segments(args.counts.size(0)), tokens(args.logits.size(0) / segments) {
  constexpr int64_t kMinTokens = 32, kMaxBlocks = 256;
  height = std::max(kMinTokens, ceil_div(tokens, kMaxBlocks));
  count = ceil_div(tokens, height);
}

Tensor router_sums_scratch(const RouterSumsArgs& args, Stream& stream) {
  const RouterBlocks blocks(args);
  const Shape shape = {blocks.segments, blocks.count, 2 * args.logits.size(1) + 2};
  return Tensor::empty(stream.scratch(), shape, args.logits.dtype(), "partial sums of the router");
}

}  // namespace megatron::kernels::cuda
