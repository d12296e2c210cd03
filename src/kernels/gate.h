// A value times the sigmoid of another: the output gate of attention (Qwen3-Next).
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// out = x * sigmoid(gate), in f32 (f64 for f64). x, gate, out [T,N], last dim contiguous, rows at any
// stride, of one shape and floating type; out may be x.
struct GateArgs {
  Tensor x, gate, out;
};

// dx = dout * sigmoid(gate), dgate = dout * x * sigmoid(gate) * (1 - sigmoid(gate)). All [T,N] as above, of
// one type; dx may be dout.
struct GateBackwardArgs {
  Tensor x, gate, dout, dx, dgate;
};

void check(const GateArgs& args);
void check(const GateBackwardArgs& args);

template <class F>
void visit(GateArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("gate", Access::read, a.gate);
  f("out", Access::write, a.out);
}
template <class F>
void visit(GateBackwardArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("gate", Access::read, a.gate);
  f("dout", Access::read, a.dout);
  f("dx", Access::write, a.dx);
  f("dgate", Access::write, a.dgate);
}

}  // namespace megatron::kernels
