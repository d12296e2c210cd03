// Matrix product.
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// Applied to s = op(a) op(b) + bias; gelu is the tanh form of
// kernels/activation.h.
//   none           out = s + beta * out
//   gelu           out = gelu(s), and aux = s if aux is defined
//   gelu_gradient  out = s * gelu'(aux)
enum class Epilogue { none, gelu, gelu_gradient };

// out = op(a) op(b) + bias + beta * out, where op(t) is t or its transpose over the last two dims.
//   a [M,K] (transpose_a: [K,M]), b [K,N] (transpose_b: [N,K]), out [M,N], bias [N] or undefined.
// With a leading batch dim, each is [G,M,K] ...: G products; a batch stride of 0 repeats a matrix.
// bias is 2-D only. The last dim of a, b and out has stride 1. Row strides are free, but that of
// out is at least N. Types: a and b alike (f64, f32, bf16, f16); out of that type, or f32 for bf16
// and f16 (gradients of weights). Sums are f32 (f64 for f64) and rounded once. beta is 0 or 1; with
// 0, out is not read. K = 0 gives bias + beta * out. Work is divided into blocks fixed by the
// shape, so the result does not depend on the number of threads. In the forward form (only b
// transposed) an element's bits depend neither on the number of rows or columns nor on its block: a
// token has the same logits alone, among others and in a training batch.
//
// With an epilogue: 2-D, beta 0, no bias for gelu_gradient; out and aux [M,N] contiguous, of one
// type, without overlap. A back-end may first round s to the type of out.
//
// bias_gradient, if defined, receives the sums over k of op(a): the gradient of a bias, computed
// with that of its weight. out [M] f32 (f64) = sum over k of a[k,m] + bias_gradient.beta * out.
// 2-D, transpose_a, a contiguous, no epilogue. Its sums are in an order fixed by the shape.
//
// a_scale, b_scale f32 0-d, or undefined: factors that a and b have been multiplied by, before
// rounding to a format of few bits. Products are multiplied by 1 / a_scale * 1 / b_scale, before
// the bias is added.
//
// double_sums: products and sums are in f64 for any type of a and b, rounded once. 2-D, out
// f32 (f64), no epilogue; the sums of bias_gradient keep the type of its out.
struct GemmArgs {
  Tensor a, b, out;
  bool transpose_a = false, transpose_b = false;
  float beta = 0;
  Tensor bias;
  Epilogue epilogue = Epilogue::none;
  Tensor aux;
  Accumulate bias_gradient;
  bool double_sums = false;
  Tensor a_scale, b_scale;
};

// True if a call is more than a product with a bias.
inline bool has_epilogue(const GemmArgs& args) {
  return args.epilogue != Epilogue::none || args.bias_gradient.out.defined();
}

void check(const GemmArgs& args);

template <class F>
void visit(GemmArgs& a, F&& f) {
  f("a", Access::read, a.a);
  f("b", Access::read, a.b);
  f("bias", Access::read, a.bias);
  f("out", written(a.beta), a.out);
  f("aux", a.epilogue == Epilogue::gelu ? Access::write : Access::read, a.aux);
  f("a_scale", Access::read, a.a_scale);
  f("b_scale", Access::read, a.b_scale);
  f("bias_gradient", written(a.bias_gradient.beta), a.bias_gradient.out);
}

}  // namespace megatron::kernels
