// Scratch memory of CUDA's element-wise kernels and reductions. The kernels request it with these
// functions, and so does meta when a run is planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/elementwise.h"

namespace megatron::kernels::cuda {

// Number of rows of x that are summed as one block: at least 64, and enough to make at most 128
// blocks.
int64_t column_sum_height(int64_t rows);
// [blocks, N] f32: sums of the blocks. Undefined, and not requested, if there is only one block.
Tensor column_sum_scratch(const ColumnSumArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
