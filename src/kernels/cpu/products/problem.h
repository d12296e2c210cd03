// Matrix products of one shape, or of groups of rows, described by plain numbers. The host's gemm
// and grouped products are built from them.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"
#include "device/stream.h"
#include "tensor/tensor.h"

namespace megatron::kernels::cpu {

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// out[g] = factor * a[g] b[g] + bias[g] + (accumulate ? out[g] : 0), for g in [0, batch), rounded
// once; strides in elements. a is [m,k], b [k,n], out [m,n], bias [n] or null. Each sum is one
// chain over k in ascending order, regardless of m, n and the blocks.
struct Problem {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::byte* out = nullptr;
  const std::byte* bias = nullptr;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t batch_a = 0, batch_b = 0, batch_c = 0, batch_bias = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType in = DType::f32, result = DType::f32, bias_type = DType::f32;
  double factor = 1;         // in f32 where sums are
  bool double_sums = false;  // for any type; f64 always has them

  // Product g covers only the range cuts[g] to cuts[g + 1] of [0, m) or of [0, k).
  const int32_t* row_cuts = nullptr;
  const int32_t* depth_cuts = nullptr;

  Range rows(int64_t g) const { return range(row_cuts, g, m); }
  Range depth(int64_t g) const { return range(depth_cuts, g, k); }

 private:
  static Range range(const int32_t* cuts, int64_t g, int64_t all) {
    return cuts == nullptr ? Range{0, all} : Range{cuts[g], cuts[g + 1]};
  }
};

// Problem::factor of operands that have been multiplied by these scales, if they are defined.
inline double product_factor(const Tensor& a_scale, const Tensor& b_scale) {
  const auto inverse = [](const Tensor& scale) {
    return scale.defined() ? 1 / static_cast<double>(*scale.data<float>()) : 1.0;
  };
  return inverse(a_scale) * inverse(b_scale);
}

void compute(const Problem& problem, Stream& stream);
// Computes all of them in parallel, with the bits of compute(). They have no row_cuts.
void compute_each(std::span<const Problem> problems, Stream& stream);

}  // namespace megatron::kernels::cpu
