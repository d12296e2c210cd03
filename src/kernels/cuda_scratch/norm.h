// Scratch memory of CUDA's backward norms. The kernels request it with these functions, and so does
// meta when a run is planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/head_norm.h"
#include "kernels/norm.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {

// Weight gradients are summed over at most 528 blocks of at least 8 rows.
struct NormBlocks {
  explicit NormBlocks(int64_t rows);
  int64_t rows, height, count;
};

// Each block's sums, [blocks, H] f32.
struct NormPartials {
  Tensor dweights, dbiases;  // dbiases: undefined without a bias
};
NormPartials norm_backward_scratch(const AddNormBackwardArgs& args, NormKind kind, Stream& stream);
// Partial sums of blocks of tokens, [blocks, W] f32; undefined if they are not needed.
NormPartials head_norm_backward_scratch(const HeadNormBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
