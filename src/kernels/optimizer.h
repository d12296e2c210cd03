// One optimizer step of one tensor. What changes between steps arrives as 0-d f64 tensors, never as
// host scalars.
#pragma once

#include "tensor/tensor.h"

namespace megatron::kernels {

// From the sum of squares of all raw gradients (a sum over tokens, before the division by
// `divisor`):
//   norm = sqrt(sum of partials in ascending order) / divisor;
//   scale = 1 / divisor * (max_norm > 0 and max_norm / (norm + 1e-6) < 1 ? max_norm / (norm + 1e-6)
//   : 1).
// partials f64 [n]; divisor, norm, scale f64 0-d. max_norm 0: no clipping.
struct GradScaleArgs {
  Tensor partials, divisor;
  double max_norm = 0;
  Tensor norm, scale;
};

// How a parameter is held. f32 and f64 parameters are their own master copy. A bf16 parameter has
// the signed remainder (i16): master bits = (bf16 bits << 16) + remainder, where bf16 is the master
// rounded to nearest, ties away from zero.
struct MasterWeight {
  Tensor value;      // bf16, f32 or f64; contiguous
  Tensor remainder;  // i16 for bf16, else undefined
};

// AdamW (Loshchilov & Hutter 2019), t counting from 1:  g = grad * scale; m = b1 m + (1-b1) g; v =
// b2 v + (1-b2) g^2; w -= lr * (m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + weight_decay * w). grad
// f32 (f64); exp_avg, exp_avg_sq f32 (f64). lr, weight_decay, step, scale: f64 0-d. Elements in f32
// (f64 for f64) but for the factors 1-b^t, which are f64 rounded once.
struct AdamArgs {
  MasterWeight parameter;
  Tensor grad, exp_avg, exp_avg_sq;
  Tensor lr, weight_decay, step, scale;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool decay = true;  // false: weight_decay does not apply to this tensor
};

// SGD with momentum and coupled decay: g = grad * scale + weight_decay * w; buffer = step == 1 ? g
// : momentum * buffer + g; w -= lr * buffer. momentum 0: no buffer (undefined), w -= lr * g.
struct SgdArgs {
  MasterWeight parameter;
  Tensor grad, buffer;
  Tensor lr, weight_decay, step, scale;
  double momentum = 0;
  bool decay = true;
};

}  // namespace megatron::kernels
