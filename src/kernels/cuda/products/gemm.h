// CUDA's matrix product, by cuBLASLt; contract in kernels/gemm.h. With double_sums, a kernel of our own.
#pragma once

#include "device/stream.h"
#include "kernels/gemm.h"

namespace megatron::kernels::cuda {

// Types f32 (no TF32), bf16 and f16 with f32 sums; f64 with double_sums only, else it throws Error. Where a call's
// sums are split over K, the parts are f32 and are added in a fixed order, so that the same call gives the same bits
// in every run on one kind of GPU with one version of cuBLASLt. What the contract promises of the forward form does
// not hold: cuBLASLt takes other kernels for other sizes, so that an element's bits may depend on the number of rows
// and columns, and on whether the tensors are aligned to 16 bytes.
// Epilogues are cuBLASLt's where it has the product with them; else kernels of our own that follow
// it, which round in between. cuBLASLt takes an aux whose rows are multiples of 8 values, aligned to
// 16 bytes.
void gemm(const GemmArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
