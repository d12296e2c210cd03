#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// y = x w^T + b.   x [T,in], w [out,in], b [out] or none, y [T,out].
// Weight gradients (dw = dy^T x, db = column sums of dy) go to their grad slots and can run apart
// from the input's (dx = dy w). memory: of y.
Var linear(Tape& tape, const Var& x, const Weight& weight, const Weight& bias = {},
           MemoryClass memory = MemoryClass::activations);

// A value and its gelu (tanh form, kernels/activation.h): x takes the gradient of both, y is a
// constant of the tape.
struct Gelu {
  Var x, y;
};

// {v, gelu(v)}, v = linear(x), by one product. keeps_v false: v is not stored, and its value
// undefined; for tapes that record nothing.
Gelu linear_gelu(Tape& tape, const Var& x, const Weight& weight, const Weight& bias, bool keeps_v);
// linear() of g.y. Backward gives g.x its gradient, by one product: dx = (dy w) gelu'(x).
Var linear(Tape& tape, const Gelu& g, const Weight& weight, const Weight& bias = {},
           MemoryClass memory = MemoryClass::activations);

// The product of linear(), and that of linear_gelu() with v, perhaps undefined, and y.
kernels::GemmArgs linear_call(const Tensor& x, const Weight& weight, const Weight& bias,
                              const Tensor& y);
kernels::GemmArgs linear_gelu_call(const Tensor& x, const Weight& weight, const Weight& bias,
                                   const Tensor& v, const Tensor& y);
// The weight gradients of a node with weights {w} or {w, b}.
void linear_weight_gradients(Backward& backward, const Tensor& dy, const Tensor& x);

}  // namespace megatron::ops
