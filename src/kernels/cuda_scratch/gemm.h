// Scratch memory of CUDA's matrix product. The kernel requests it with these functions, and so does
// meta when a run is planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/coded_product.h"
#include "kernels/gemm.h"

namespace megatron::kernels::cuda {

// Bytes of workspace that cuBLASLt may use for products [M,N]: room for the sums of 64 parts of K,
// from 1 to 64 MiB. Algorithms that need more are not used.
int64_t product_workspace(int64_t products, int64_t m, int64_t n);
// Alignment of the workspace: cuBLASLt's kernels for Hopper need more than the 64 bytes of an
// arena's blocks, and more than its documentation says.
inline constexpr int64_t kWorkspaceAlignment = 256;

// Tensors are undefined if the call does not need them. Operands are copied if cuBLASLt cannot read
// them in place: matrices with overlapping rows, a bias of a type other than out's or not aligned
// to 16 bytes. cuBLASLt overwrites the gradient of a bias, so one that is accumulated, or not
// aligned, goes through scratch. Nothing is requested if out is empty, or with double_sums. A call
// with a bias's gradient first requests and releases column_sum's scratch, because it is only known
// later whether cuBLASLt supports the product with it.
struct GemmScratch {
  Tensor workspace;      // u8 [product_workspace], and room to align it
  Tensor a, b;           // contiguous
  Tensor bias;           // of the type of out
  Tensor bias_gradient;  // f32 [M]
  Tensor zeros;          // [max(M,N)] of the type of a: both operands of a product with K = 0
  Tensor factors;        // f32 [kFactors] of a product of operands with scales (ProductFactor)
};
// Multipliers of a product that the GPU computes: 1 / a_scale and 1 / b_scale, which products of
// codes without scales of blocks read; their product and beta, which others read as alpha and beta.
enum ProductFactor : uint8_t { kInverseA, kInverseB, kAlpha, kBeta, kFactors };
GemmScratch gemm_scratch(const GemmArgs& args, Stream& stream);

// The same product of operands that are codes, in GemmArgs' terms.
GemmArgs product_of_codes(const CodedGemmArgs& args);
inline GemmScratch coded_gemm_scratch(const CodedGemmArgs& args, Stream& stream) {
  return gemm_scratch(product_of_codes(args), stream);
}

}  // namespace megatron::kernels::cuda
