// Times the algorithms of a matrix product.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "device/cuda/stream.h"

namespace megatron::kernels::cuda {

// Queues the product with an algorithm. Returns false if it was refused and nothing is queued.
using Attempt = std::function<bool(const cublasLtMatmulAlgo_t& algorithm)>;

// Returns the index of the fastest algorithm; the first one unless another takes at least 2% less
// time. Queues every attempt on the stream several times and waits for them. Returns 0 if all are
// refused.
size_t fastest(const std::vector<cublasLtMatmulAlgo_t>& algorithms, const Attempt& attempt,
               megatron::cuda::CudaStream& stream);

// Copy of device memory in host memory, since the GPU may have no room for it. restore() copies it
// back.
class HostCopy {
 public:
  HostCopy(void* at, size_t bytes, megatron::cuda::CudaStream& stream);
  void restore();

 private:
  void* at_;
  megatron::cuda::CudaStream& stream_;
  std::vector<std::byte> bytes_;
};

}  // namespace megatron::kernels::cuda
