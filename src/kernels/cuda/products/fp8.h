// Products of quantised operands: the scales that cuBLASLt applies, and this program's own kernel.
#pragma once

#include "device/stream.h"
#include "kernels/fp8_gemm.h"
#include "kernels/gemm.h"

namespace megatron::kernels::cuda {

// Sets factors f32 [kFactors], by ProductFactor, to those of a product of operands with scales.
void product_factors(const GemmArgs& args, const Tensor& factors, Stream& stream);

// fp8_gemm without tensor cores, for GPUs and calls that cuBLASLt does not support.
void multiply_codes(const Fp8GemmArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
