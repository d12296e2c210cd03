#include "kernels/cuda_scratch/gemm.h"

#include <algorithm>

#include "kernels/cuda_scratch/scratch.h"

namespace megatron::kernels::cuda {
namespace {

bool rows_overlap(const Tensor& t) { return t.size(-2) > 1 && t.stride(-2) < t.size(-1); }

// Blocks of an arena are aligned to 64 bytes.
bool aligned(const Tensor& t) { return t.offset() * size_of(t.dtype()) % 16 == 0; }

}  // namespace

int64_t product_workspace(int64_t products, int64_t m, int64_t n) {
  constexpr int64_t kParts = 64, kMin = int64_t{1} << 20, kMax = int64_t{64} << 20;
  const int64_t sums = products * m * n * size_of(DType::f32);
  return sums > kMax / kParts ? kMax : std::max(kMin, kParts * sums);
}

GemmScratch gemm_scratch(const GemmArgs& args, Stream& stream) {
  GemmScratch scratch;
  const Accumulate& sums = args.bias_gradient;
  if (sums.out.defined()) column_sum_scratch({.x = args.a, .out = sums}, stream);
  if (args.out.elements() == 0 || args.double_sums) return scratch;
  Arena& arena = stream.scratch();
  const auto dense = [&](const Tensor& like, DType type, const char* label) {
    return Tensor::empty(arena, like.shape(), type, label);
  };
  const int64_t workspace = product_workspace(args.out.rank() == 3 ? args.out.size(0) : 1,
                                              args.out.size(-2), args.out.size(-1));
  scratch.workspace =
      Tensor::empty(arena, {workspace + kWorkspaceAlignment}, DType::u8, "gemm workspace");
  const DType type = args.a.dtype();
  if (args.a.elements() == 0) {
    const int64_t most = std::max(args.out.size(-2), args.out.size(-1));
    scratch.zeros = Tensor::empty(arena, {most}, type, "gemm zeros");
  } else {
    if (rows_overlap(args.a)) scratch.a = dense(args.a, type, "gemm a");
    if (rows_overlap(args.b)) scratch.b = dense(args.b, type, "gemm b");
  }
  const Tensor& bias = args.bias;
  if (bias.defined() && (bias.dtype() != args.out.dtype() || !aligned(bias)))
    scratch.bias = dense(bias, args.out.dtype(), "gemm bias");
  if (sums.out.defined() && (sums.beta != 0 || !aligned(sums.out)))
    scratch.bias_gradient = dense(sums.out, DType::f32, "gemm bias gradient");
  if (args.a_scale.defined() || args.b_scale.defined())
    scratch.factors = Tensor::empty(arena, {kFactors}, DType::f32, "gemm factors");
  return scratch;
}

GemmArgs product_of_codes(const CodedGemmArgs& args) {
  return {.a = args.a.codes,
          .b = args.b.codes,
          .out = args.out,
          .transpose_b = true,
          .beta = args.beta,
          .bias = args.bias,
          .a_scale = args.a.tensor_scale,
          .b_scale = args.b.tensor_scale};
}

}  // namespace megatron::kernels::cuda
