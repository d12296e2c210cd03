// Matrix products of groups of rows, each with its own matrix: an expert's tokens with its weights.
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// Rows [offsets[g], offsets[g+1]) of a [R,K] are group g: out[r,:] = a[r,:] op(b[g]) + bias[g],
// op(b[g]) = b[g] or its transpose; rows from offsets[G] on become zero. b [G,K,N] (transpose_b:
// [G,N,K]), bias [G,N] or undefined, out [R,N], offsets i32 [G+1] ascending from 0, at most R. All
// contiguous; a, b, bias and out of one type (f64, f32, bf16, f16). Sums are f32 (f64) and rounded
// once, in blocks fixed by the shapes, after they are multiplied by 1 / a_scale * 1 / b_scale (f32
// 0-d, or undefined; see GemmArgs). With transpose_b, an element has the same bits as in gemm,
// regardless of the number of rows in its group and of other rows.
struct GroupedGemmArgs {
  Tensor a, b, bias, offsets, out;
  bool transpose_b = false;
  Tensor a_scale, b_scale;
};

// dw[g] = dy_g^T x_g + beta * dw[g], dbias[g] = column sums of dy_g + beta * dbias[g], over the
// rows of group g in an order fixed by their number; the sums of an empty group are 0. The products
// are multiplied by 1 / dy_scale * 1 / x_scale (f32 0-d, or undefined). dy [R,M], x [R,N] of one
// type, dw f32 (f64) [G,M,N], dbias f32 (f64) [G,M] or undefined; offsets as above;
// contiguous.
struct GroupedGradientArgs {
  Tensor dy, x, offsets;
  Accumulate dw, dbias;
  Tensor dy_scale, x_scale;
};

void check(const GroupedGemmArgs& args);
void check(const GroupedGradientArgs& args);

template <class F>
void visit(GroupedGemmArgs& a, F&& f) {
  f("a", Access::read, a.a);
  f("b", Access::read, a.b);
  f("bias", Access::read, a.bias);
  f("offsets", Access::read, a.offsets);
  f("a_scale", Access::read, a.a_scale);
  f("b_scale", Access::read, a.b_scale);
  f("out", Access::write, a.out);
}
template <class F>
void visit(GroupedGradientArgs& a, F&& f) {
  f("dy", Access::read, a.dy);
  f("x", Access::read, a.x);
  f("offsets", Access::read, a.offsets);
  f("dy_scale", Access::read, a.dy_scale);
  f("x_scale", Access::read, a.x_scale);
  f("dw", written(a.dw.beta), a.dw.out);
  f("dbias", written(a.dbias.beta), a.dbias.out);
}

}  // namespace megatron::kernels
