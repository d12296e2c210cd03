#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

struct AddNorm {
  Var normed, residual;
};

// residual = x + r; normed = norm(residual). x, r [T,H], weight, bias [H]. r may be undefined:
// residual = x. Residual sum and norm are one op, so that a decoder block has no fan-out. RMSNorm:
// Zhang & Sennrich 2019; LayerNorm: Ba et al. 2016, bias may be none. The normalised values are
// multiplied by weight_offset + weight.
AddNorm add_rms_norm(Tape& tape, const Var& x, const Var& r, const Weight& weight, double eps,
                     double weight_offset = 0);
AddNorm add_layer_norm(Tape& tape, const Var& x, const Var& r, const Weight& weight,
                       const Weight& bias, double eps, double weight_offset = 0);

}  // namespace megatron::ops
