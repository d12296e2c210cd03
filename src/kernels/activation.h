// Activations of the feed-forward block, plain and gated.
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// gelu_tanh: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); gelu_erf: x Phi(x); silu: x
// sigmoid(x); relu; squared_relu: max(x, 0)^2 (So et al. 2021); quick_gelu: x sigmoid(1.702 x).
enum class Activation { gelu_tanh, gelu_erf, silu, relu, squared_relu, quick_gelu };

// Plain: x, out [T,F], out = f(x). Gated (Shazeer 2020): x [T,2F] = [gate | up], out = f(gate) *
// (up + up_offset). If clamp > 0, first gate is limited to min(gate, clamp) and up to [-clamp,
// clamp]; gradients pass at the bounds. Contiguous, one type. Computed in f32 (f64 for f64).
struct ActivationArgs {
  Activation function = Activation::gelu_tanh;
  bool gated = false;
  Tensor x, out;
  double clamp = 0, up_offset = 0;  // gated form only
};

// dx = dout * derivative, in the layout of x.
struct ActivationBackwardArgs {
  Activation function = Activation::gelu_tanh;
  bool gated = false;
  Tensor x, dout, dx;
  double clamp = 0, up_offset = 0;  // gated form only
};

void check(const ActivationArgs& args);
void check(const ActivationBackwardArgs& args);

template <class F>
void visit(ActivationArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("out", Access::write, a.out);
}
template <class F>
void visit(ActivationBackwardArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("dout", Access::read, a.dout);
  f("dx", Access::write, a.dx);
}

}  // namespace megatron::kernels
