// Matrix product of 8-bit floats.
#pragma once

#include "base/low_precision.h"
#include "kernels/access.h"

namespace megatron::kernels {

// out = a b^T / (a_scale b_scale) + bias + beta * out.
//   a u8 [M,K], b u8 [N,K]   codes of a_format and b_format: e4m3 or e5m2, but not both e5m2, which
//                            tensor cores do not multiply. Contiguous
//   a_scale, b_scale         f32 0-d: factors that the operands were multiplied by before rounding
//   out [M,N]                bf16, f16 or f32; its row stride is free, but at least N
//   bias [N]                 contiguous, of the type of out, or undefined
// M, N and K are multiples of kFp8Step. Sums are f32 in an order fixed by the shape, and rounded
// once. beta is 0 or 1; with 0, out is not read.
struct Fp8GemmArgs {
  Tensor a, b;
  LowFormat a_format = LowFormat::e4m3, b_format = LowFormat::e4m3;
  Tensor a_scale, b_scale, out, bias;
  float beta = 0;
};
inline constexpr int64_t kFp8Step = 16;

void check(const Fp8GemmArgs& args);

template <class F>
void visit(Fp8GemmArgs& a, F&& f) {
  f("a", Access::read, a.a);
  f("b", Access::read, a.b);
  f("a_scale", Access::read, a.a_scale);
  f("b_scale", Access::read, a.b_scale);
  f("bias", Access::read, a.bias);
  f("out", written(a.beta), a.out);
}

}  // namespace megatron::kernels
