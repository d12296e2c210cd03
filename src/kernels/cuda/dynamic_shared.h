// The block's dynamic shared memory.
#pragma once

#include <cuda_runtime.h>

namespace megatron::kernels::cuda {

// The block's dynamic shared memory, aligned to 16 bytes. Its size is the launch's
// Grid::dynamic_shared.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char megatron_dynamic_shared[];
  return megatron_dynamic_shared;
}

}  // namespace megatron::kernels::cuda
