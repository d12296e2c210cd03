// The kernels of the CUDA back-end. Each is queued on the stream and returns immediately. An
// element's bits depend neither on the grid nor on a tensor's address: reductions are divided by
// shape alone and added in order, without floating-point atomics.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

// The table that the shared object exports as megatron_cuda_kernels (device/cuda_plugin.h).
const Table& cuda_table();

}  // namespace megatron::kernels
