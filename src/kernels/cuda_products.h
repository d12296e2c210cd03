// The algorithms that CUDA's matrix product can take; contracts in kernels/cuda/gemm.h.
#pragma once

#include <vector>

#include "kernels/gemm.h"

namespace megatron::kernels {

struct CudaProducts {
  // Seconds a run of each.
  std::vector<double> (*time)(const GemmArgs& args, Stream& stream, int repeats) = nullptr;
  void (*choose)(const GemmArgs& args, Stream& stream, int index) = nullptr;
};

// Those of the shared object, which exports them as megatron_cuda_products. Throws Error where
// there is none.
const CudaProducts& cuda_products();

}  // namespace megatron::kernels
