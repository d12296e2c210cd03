#include "device/cuda/driver.h"

#include <cuda_runtime.h>

#include "base/error.h"

namespace megatron::cuda {

void* driver_entry(const char* name, unsigned since) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  cudaGetDriverEntryPointByVersion(name, &function, since, cudaEnableDefault, &found);
#else
  cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
  (void)since;
#endif
  MG_CHECK(function != nullptr && found == cudaDriverEntryPointSuccess,
           "the NVIDIA driver has no function '{}'; install a driver for CUDA {}.{} or later", name,
           since / 1000, since % 1000 / 10);
  return function;
}

}  // namespace megatron::cuda
