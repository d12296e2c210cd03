// Soft capping of logits (Gemma Team 2024, section 2).
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// out = cap * tanh(x / cap), in f32 (f64 for f64); cap > 0. x, out contiguous, of one shape and floating
// type; out may be x.
struct SoftCapArgs {
  double cap = 0;
  Tensor x, out;
};

// dx = dout * (1 - (out / cap)^2), where `out` is the capped value, f32 (f64 for f64). dout, dx
// contiguous, of one shape and of one type: any of f32/bf16/f16 (f64 for f64). dx may be dout.
struct SoftCapBackwardArgs {
  double cap = 0;
  Tensor out, dout, dx;
};

void check(const SoftCapArgs& args);
void check(const SoftCapBackwardArgs& args);

template <class F>
void visit(SoftCapArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("out", Access::write, a.out);
}
template <class F>
void visit(SoftCapBackwardArgs& a, F&& f) {
  f("out", Access::read, a.out);
  f("dout", Access::read, a.dout);
  f("dx", Access::write, a.dx);
}

}  // namespace megatron::kernels
