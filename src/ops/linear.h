#pragma once

#include "autograd/tape.h"
#include "ops/low_rank.h"

namespace megatron::ops {

// y = x w^T + b.   x [T,in], w [out,in], b [out] or none, y [T,out].
// Weight gradients (dw = dy^T x, db = column sums of dy) are written to their grad slots and can
// run separately from the input's gradient (dx = dy w). memory: class of y. adapter: added to w. A
// tape's additions to w are added to y.
Var linear(Tape& tape, const Var& x, const Weight& weight, const Weight& bias = {},
           MemoryClass memory = MemoryClass::activations, const LowRank& adapter = {});

// A value and its gelu (tanh form, kernels/activation.h): x receives the gradient of both; y is a
// constant of the tape.
struct Gelu {
  Var x, y;
};

// {v, gelu(v)}, v = linear(x), in one product. keeps_v false: v is not stored and its value is
// undefined; for tapes that record nothing.
Gelu linear_gelu(Tape& tape, const Var& x, const Weight& weight, const Weight& bias, bool keeps_v);
// linear() of g.y. Backward computes the gradient of g.x in one product: dx = (dy w) gelu'(x).
Var linear(Tape& tape, const Gelu& g, const Weight& weight, const Weight& bias = {},
           MemoryClass memory = MemoryClass::activations);

// Arguments of the product of linear(), and of linear_gelu() with y and v, which may be undefined.
kernels::GemmArgs linear_call(const Tensor& x, const Weight& weight, const Weight& bias,
                              const Tensor& y);
kernels::GemmArgs linear_gelu_call(const Tensor& x, const Weight& weight, const Weight& bias,
                                   const Tensor& v, const Tensor& y);
// Writes gelu(x w^T + b, with its additions) to the rows of y that have additions to w.
void add_to_gelu_product(const Tensor& x, Tape& tape, const Weight& weight, const Weight& bias,
                         const Tensor& y);
// Computes the gradients of a node's first weight w and, if has_bias, its second, b.
void linear_weight_gradients(Backward& backward, const Tensor& dy, const Tensor& x, bool has_bias);

}  // namespace megatron::ops
