// Values confined to an interval (clip_qkv of DBRX and OLMoE).
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// out = min(max(x, -limit), limit), limit > 0; a NaN stays one. x, out [T,N], last dim contiguous, rows at
// any stride, of one shape and floating type; out may be x.
struct ClipArgs {
  double limit = 0;
  Tensor x, out;
};

// dx = dout where -limit <= x <= limit, else 0. x [T,N] as forward's x; dout, dx as it, of one type; dx may
// be dout.
struct ClipBackwardArgs {
  double limit = 0;
  Tensor x, dout, dx;
};

void check(const ClipArgs& args);
void check(const ClipBackwardArgs& args);

template <class F>
void visit(ClipArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("out", Access::write, a.out);
}
template <class F>
void visit(ClipBackwardArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("dout", Access::read, a.dout);
  f("dx", Access::write, a.dx);
}

}  // namespace megatron::kernels
