// CUDA's products of groups of rows; contracts in kernels/grouped_gemm.h. Kernels of our own: gemm is a library's, whose
// order of sums is its own, so that its bits differ from these.
#pragma once

#include "device/stream.h"
#include "kernels/grouped_gemm.h"

namespace megatron::kernels::cuda {

void grouped_gemm(const GroupedGemmArgs& args, Stream& stream);
void grouped_gradient(const GroupedGradientArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
