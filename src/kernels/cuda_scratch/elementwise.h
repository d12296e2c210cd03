// The scratch memory of CUDA's element-wise kernels and reductions. The kernels ask with these
// functions, and so does meta when a run is planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/elementwise.h"

namespace megatron::kernels::cuda {

// Rows of x that are summed as one block: 64 at least, and as many as make 128 blocks at most.
int64_t column_sum_height(int64_t rows);
// [blocks, N] f32: the sums of the blocks. Undefined, and not asked for, where there is one only.
Tensor column_sum_scratch(const ColumnSumArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
