// Matrix product on CUDA with f64 sums. Each sum is one chain over k in ascending order, so an
// element's bits depend on no other size.
#pragma once

#include "device/stream.h"
#include "kernels/gemm.h"

namespace megatron::kernels::cuda {

// args: double_sums, no bias_gradient, out not empty.
void double_gemm(const GemmArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
