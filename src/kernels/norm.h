// Residual addition and normalization in one pass, so that a decoder block has no fan-out.
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// sum = x + residual. If residual is undefined, sum = x, and `sum` may be undefined: x then takes
// its
// place. With w = weight_offset + weight (trained as 1 + weight if checkpoints store gamma - 1):
//   RMSNorm (Zhang & Sennrich 2019):
//     normed = sum * rstd * w, rstd = 1 / sqrt(mean(sum^2) + eps)
//   LayerNorm (Ba et al. 2016):
//     normed = (sum - mean) * rstd * w + bias, rstd = 1 / sqrt(var(sum) + eps)
// x, residual, sum, normed [T,H] contiguous, of one type; weight, bias [H] of that type. Statistics
// in f32 (f64 for f64) from the sum as stored: mean, rstd [T].
struct AddNormArgs {
  Tensor x, residual;
  Tensor weight, bias;  // bias: optional, LayerNorm only
  double eps = 1e-5;
  Tensor sum, normed;
  Tensor mean, rstd;  // mean: LayerNorm only
  double weight_offset = 0;
};

// dsum = (gradient of normed through the norm) + dsum_in, which is the gradient of both x and
// residual. dweight, dbias in f32 (f64), summed over fixed blocks of rows in order. dsum_in
// undefined: 0.
struct AddNormBackwardArgs {
  Tensor dnormed, dsum_in;  // [T,H]
  Tensor sum, weight, mean, rstd;
  Tensor dsum;                // [T,H]
  Accumulate dweight, dbias;  // dbias.out: only with a bias
  double weight_offset = 0;
};

enum class NormKind { rms, layer };

void check(const AddNormArgs& args, NormKind kind);
void check(const AddNormBackwardArgs& args, NormKind kind);

template <class F>
void visit(AddNormArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("residual", Access::read, a.residual);
  f("weight", Access::read, a.weight);
  f("bias", Access::read, a.bias);
  f("sum", Access::write, a.sum);
  f("normed", Access::write, a.normed);
  f("mean", Access::write, a.mean);
  f("rstd", Access::write, a.rstd);
}
template <class F>
void visit(AddNormBackwardArgs& a, F&& f) {
  f("dnormed", Access::read, a.dnormed);
  f("dsum_in", Access::read, a.dsum_in);
  f("sum", Access::read, a.sum);
  f("weight", Access::read, a.weight);
  f("mean", Access::read, a.mean);
  f("rstd", Access::read, a.rstd);
  f("dsum", Access::write, a.dsum);
  f("dweight", written(a.dweight.beta), a.dweight.out);
  f("dbias", written(a.dbias.beta), a.dbias.out);
}

}  // namespace megatron::kernels
