// Times the algorithms of a matrix product.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "device/cuda/stream.h"

namespace megatron::kernels::cuda {

// Queues the product by an algorithm; false: it was refused, and nothing is queued.
using Attempt = std::function<bool(const cublasLtMatmulAlgo_t& algorithm)>;

// The place of the fastest: the first unless another takes at least 2% less time. Every attempt is
// queued on the stream several times; the host waits for them. 0 where all are refused.
size_t fastest(const std::vector<cublasLtMatmulAlgo_t>& algorithms, const Attempt& attempt,
               megatron::cuda::CudaStream& stream);

// Copy of device memory in host memory, since a GPU may have none to spare: restore() puts it back.
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
