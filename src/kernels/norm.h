// Residual addition and normalisation in one pass, so that a decoder block has no fan-out.
#pragma once

#include "tensor/tensor.h"

namespace megatron::kernels {

// Where a weight gradient goes: out = gradient + beta * out, beta 0 or 1; with 0 out is not read.
struct Accumulate {
  Tensor out;
  float beta = 0;
};

// sum = x + residual (residual undefined: sum = x, and `sum` may be undefined, then x itself is the
// sum) RMSNorm (Zhang & Sennrich 2019):  normed = sum * rstd * weight,                rstd = 1 /
// sqrt(mean(sum^2) + eps) LayerNorm (Ba et al. 2016):       normed = (sum - mean) * rstd * weight +
// bias, rstd = 1 / sqrt(var(sum) + eps) x, residual, sum, normed [T,H] contiguous, of one type;
// weight, bias [H] of that type. Statistics in f32 (f64 for f64) from the sum as stored: mean, rstd
// [T].
struct AddNormArgs {
  Tensor x, residual;
  Tensor weight, bias;  // bias: LayerNorm only; undefined for RMSNorm
  double eps = 1e-5;
  Tensor sum, normed;
  Tensor mean, rstd;  // mean: LayerNorm only
};

// dsum = (gradient of normed through the norm) + dsum_in;  it is the gradient of x and of residual
// alike. dweight, dbias in f32 (f64), summed over fixed blocks of rows in order. dsum_in undefined:
// 0.
struct AddNormBackwardArgs {
  Tensor dnormed, dsum_in;  // [T,H]
  Tensor sum, weight, mean, rstd;
  Tensor dsum;  // [T,H]
  Accumulate dweight, dbias;
};

}  // namespace megatron::kernels
