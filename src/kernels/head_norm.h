// Normalization of queries and keys, per head or over all heads (Henry et al. 2020; Dehghani et al.
// 2023).
#pragma once

#include "kernels/access.h"
#include "kernels/norm.h"

namespace megatron::kernels {

// Normalizes each row x[t,g,:] of W elements. rms: out = x * rstd * (weight_offset + weight), rstd
// = 1 / sqrt(mean(x^2) + eps). layer: out = (x - mean) * rstd * (weight_offset + weight) + bias,
// rstd = 1 / sqrt(var(x) + eps). weight undefined: the factor is 1. x, out [T,G,W], last dim
// contiguous, other strides free, one floating type; weight, bias [W] of that type. Statistics in
// f32 (f64): mean, rstd [T,G]. squares (rms only): sums of x^2 over whole rows of `row_width`
// elements if ranks divide rows and this one has W of them; undefined: rows are complete. out does
// not overlap x.
struct HeadNormArgs {
  NormKind kind = NormKind::rms;
  Tensor x, weight, bias;
  double weight_offset = 0, eps = 1e-5;
  Tensor squares;  // f32 (f64) [T,G]
  int64_t row_width = 0;
  Tensor out, mean, rstd;  // mean: layer only
};

// xhat = (x - mean) * rstd (rms: x * rstd), g = dout * (weight_offset + weight): dx = rstd * (g -
// mean(g) - xhat * mean(g * xhat)), where mean(g) is 0 for rms. products (rms only): sums of g * x
// over whole rows of `row_width` elements. dweight, dbias f32 (f64) [W]: sums over t and g of dout
// * xhat and of dout, in fixed blocks of rows, the blocks in order; not computed if their out is
// undefined. dx may be dout.
struct HeadNormBackwardArgs {
  NormKind kind = NormKind::rms;
  Tensor x, weight, dout, mean, rstd;
  double weight_offset = 0;
  Tensor products;  // f32 (f64) [T,G]
  int64_t row_width = 0;
  Tensor dx;
  Accumulate dweight, dbias;
};

// out[t,g] = sum over w of a[t,g,w] * b[t,g,w] * (weight_offset + weight[w]), in f32 (f64); weight
// undefined: the factor is 1. a, b [T,G,W] as x above, out f32 (f64) [T,G] contiguous.
struct RowDotArgs {
  Tensor a, b, weight;
  double weight_offset = 0;
  Tensor out;
};

void check(const HeadNormArgs& args);
void check(const HeadNormBackwardArgs& args);
void check(const RowDotArgs& args);

template <class F>
void visit(HeadNormArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("weight", Access::read, a.weight);
  f("bias", Access::read, a.bias);
  f("squares", Access::read, a.squares);
  f("out", Access::write, a.out);
  f("mean", Access::write, a.mean);
  f("rstd", Access::write, a.rstd);
}
template <class F>
void visit(HeadNormBackwardArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("weight", Access::read, a.weight);
  f("dout", Access::read, a.dout);
  f("mean", Access::read, a.mean);
  f("rstd", Access::read, a.rstd);
  f("products", Access::read, a.products);
  f("dx", Access::write, a.dx);
  f("dweight", written(a.dweight.beta), a.dweight.out);
  f("dbias", written(a.dbias.beta), a.dbias.out);
}
template <class F>
void visit(RowDotArgs& a, F&& f) {
  f("a", Access::read, a.a);
  f("b", Access::read, a.b);
  f("weight", Access::read, a.weight);
  f("out", Access::write, a.out);
}

}  // namespace megatron::kernels
