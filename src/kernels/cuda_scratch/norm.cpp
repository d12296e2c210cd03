#include "kernels/cuda_scratch/norm.h"

#include <algorithm>

#include "base/divide.h"

namespace megatron::kernels::cuda {
namespace {

// Four blocks for each of the 132 multiprocessors of an H200: while a block waits for the sums of a
// row before it reads the next, others have their rows in flight. Their partial sums, 8.4 MB for a
// width of 4,096, stay in the 50 MB L2 cache.
constexpr int64_t kMaxBlocks = 528;
constexpr int64_t kMinRows = 8;

}  // namespace

NormBlocks::NormBlocks(int64_t rows_)
    : rows(rows_),
      height(std::max(kMinRows, ceil_div(rows_, kMaxBlocks))),
      count(ceil_div(rows_, height)) {}

NormPartials norm_backward_scratch(const AddNormBackwardArgs& args, NormKind kind, Stream& stream) {
  const NormBlocks blocks(args.sum.size(0));
  const auto partials = [&](const char* label) {
    return Tensor::empty(stream.scratch(), {blocks.count, args.sum.size(1)}, DType::f32, label);
  };
  NormPartials all{partials("partial sums of dweight"), {}};
  if (kind == NormKind::layer && args.dbias.out.defined())
    all.dbiases = partials("partial sums of dbias");
  return all;
}

NormPartials head_norm_backward_scratch(const HeadNormBackwardArgs& args, Stream& stream) {
  const NormBlocks blocks(args.x.size(0));
  const Shape shape = {blocks.count, args.x.size(2)};
  NormPartials all;
  if (args.dweight.out.defined())
    all.dweights = Tensor::empty(stream.scratch(), shape, DType::f32, "partial sums of dweight");
  if (args.dbias.out.defined())
    all.dbiases = Tensor::empty(stream.scratch(), shape, DType::f32, "partial sums of dbias");
  return all;
}

}  // namespace megatron::kernels::cuda
