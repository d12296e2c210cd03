// Products of operands that are codes: the scales that cuBLASLt applies, and this program's own
// kernel.
#pragma once

#include "device/stream.h"
#include "kernels/coded_product.h"
#include "kernels/gemm.h"

namespace megatron::kernels::cuda {

// Sets factors f32 [kFactors], by ProductFactor, to those of a product of operands with scales.
void product_factors(const GemmArgs& args, const Tensor& factors, Stream& stream);

// coded_gemm without tensor cores, for GPUs, libraries and calls for which cuBLASLt has no
// algorithm.
void multiply_codes(const CodedGemmArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
