// Multiplies a value by the sigmoid of another: the output gate of attention (Qwen3-Next).
#pragma once

#include "kernels/elements.h"

namespace megatron::kernels {

// out = x * sigmoid(gate), in f32 (f64 for f64). x, gate, out [T,N], last dim contiguous, any row
// stride, of one shape and floating type; out may be x.
struct GateArgs {
  Tensor x, gate, out;

  static constexpr auto kElements =
      elements("gate", ElementLayout::rows, input("x", &GateArgs::x),
               input("gate", &GateArgs::gate), output("out", &GateArgs::out, &GateArgs::x));
};

// dx = dout * sigmoid(gate), dgate = dout * x * sigmoid(gate) * (1 - sigmoid(gate)). All [T,N] as
// above, of one type; dx may be dout.
struct GateBackwardArgs {
  Tensor x, gate, dout, dx, dgate;

  static constexpr auto kElements =
      elements("gate_backward", ElementLayout::rows, input("x", &GateBackwardArgs::x),
               input("gate", &GateBackwardArgs::gate), input("dout", &GateBackwardArgs::dout),
               output("dx", &GateBackwardArgs::dx, &GateBackwardArgs::dout),
               output("dgate", &GateBackwardArgs::dgate));
};

}  // namespace megatron::kernels
