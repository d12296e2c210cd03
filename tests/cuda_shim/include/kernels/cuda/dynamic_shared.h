// A block's dynamic shared memory on the CPU. It ends at a page that faults, and is filled with
// NaNs when the block begins.
#pragma once

#include <cuda_runtime.h>

namespace megatron::kernels::cuda {

inline unsigned char* dynamic_shared() { return ::cuda_shim::here.dynamic_shared; }

}  // namespace megatron::kernels::cuda
