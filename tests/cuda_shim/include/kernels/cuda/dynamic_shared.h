// The block's dynamic shared memory, on the CPU: it ends where memory that faults begins, and is
// full of NaNs when the block begins.
#pragma once

#include <cuda_runtime.h>

namespace megatron::kernels::cuda {

inline unsigned char* dynamic_shared() { return ::cuda_shim::here.dynamic_shared; }

}  // namespace megatron::kernels::cuda
