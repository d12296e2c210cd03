// The CUDA back-end's kernels. Each is queued on the stream and returns at once. An element's bits
// depend neither on the grid nor on where a tensor lies; reductions are cut by shapes and added in
// order, with no floating-point atomics.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

// The table that the shared object exports as megatron_cuda_kernels (device/cuda_plugin.h).
const Table& cuda_table();

}  // namespace megatron::kernels
