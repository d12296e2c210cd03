// Matrix product.
#pragma once

#include "tensor/tensor.h"

namespace megatron::kernels {

// out = op(a) op(b) + bias + beta * out, op(t) = t or its transpose over the last two dims.
//   a [M,K] (transpose_a: [K,M]), b [K,N] (transpose_b: [N,K]), out [M,N], bias [N] or undefined.
// With a leading batch dim, each is [G,M,K] ...: G products; a stride of 0 there repeats a matrix.
// bias is 2-D only. The last dim of a, b and out has stride 1; the row stride is free, but for out
// it is at least N. Types: a and b alike (f64, f32, bf16, f16); out of that type, or f32 for bf16
// and f16 (gradients of weights). Sums are f32 (f64 for f64) and rounded once. beta is 0 or 1; with
// 0 out is not read. K = 0 gives bias + beta * out. Work is cut in blocks fixed by the shape; the
// result does not depend on the number of threads. In the forward form (a as it is, b transposed)
// an element's bits depend neither on the number of rows nor on the number of columns, nor on which
// block it falls into: a token has the same logits alone, among others and in a training batch.
struct GemmArgs {
  Tensor a, b, out;
  bool transpose_a = false, transpose_b = false;
  float beta = 0;
  Tensor bias;
};

}  // namespace megatron::kernels
