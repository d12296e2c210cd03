// The scratch memory of CUDA's matrix product: the kernel asks with these functions, and so does
// meta when a run is planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/gemm.h"

namespace megatron::kernels::cuda {

// Bytes that cuBLASLt may use besides products [M,N]: room for the sums of 64 parts of K, from 1 to
// 64 MiB. An algorithm that wants more is not taken.
int64_t product_workspace(int64_t products, int64_t m, int64_t n);
// Where it begins: cuBLASLt's kernels for Hopper want more than the 64 bytes that blocks of an arena
// are aligned to, and more than its documentation says.
inline constexpr int64_t kWorkspaceAlignment = 256;

// Undefined where the call does not need it. Operands are copied where cuBLASLt cannot read them as they lie:
// matrices with rows that overlap, a bias of another type than out or not aligned to 16 bytes; it writes the gradient
// of a bias, so that one to add to, or not aligned, goes by scratch. Nothing is asked for where out is empty, or with
// double_sums. A call with a bias's gradient asks for column_sum's scratch before, and lets it go: whether cuBLASLt
// has the product with it is not known before it is asked.
struct GemmScratch {
  Tensor workspace;      // u8 [product_workspace], and room to align it
  Tensor a, b;           // contiguous
  Tensor bias;           // of the type of out
  Tensor bias_gradient;  // f32 [M]
  Tensor zeros;          // [max(M,N)] of the type of a: both operands of a product with K = 0
};
GemmScratch gemm_scratch(const GemmArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
