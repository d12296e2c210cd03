// One optimizer step of one tensor. Values that change between steps are passed as 0-d f64 tensors,
// never as host scalars.
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// From the sum of squares of all raw gradients (which are sums over tokens, not yet divided by
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

// Storage of a parameter. f32 and f64 parameters are their own master weights. A bf16 parameter has
// a signed remainder (i16): master bits = (bf16 bits << 16) + remainder, where bf16 is the master
// weight rounded to nearest, ties away from zero. f16 has too few exponent bits for that: the
// kernels update an f32 master weight, from which the f16 parameter is copied.
struct MasterWeight {
  Tensor value;      // bf16, f32 or f64; contiguous
  Tensor remainder;  // i16 for bf16, else undefined
};

// AdamW (Loshchilov & Hutter 2019), t counting from 1:  g = grad * scale; m = b1 m + (1-b1) g; v =
// b2 v + (1-b2) g^2; w -= lr * (m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + weight_decay * w). grad
// f32 (f64); exp_avg, exp_avg_sq each of that type, bf16 or u8 (the codes of
// kernels/moment_codes.h): the update uses m and v before they are rounded (bf16: to nearest, ties
// to even). lr, weight_decay, step, scale: f64 0-d. Elements in f32 (f64 for f64), but the factors
// 1-b^t are f64, rounded once.
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

// Lion (Chen et al., arXiv 2302.06675): g = grad * scale; w -= lr * (sign(b1 m + (1-b1) g) +
// weight_decay * w), then m = b2 m + (1-b2) g; sign(0) = 0. Types and scalars as for Adam; exp_avg
// (m) f32 (f64).
struct LionArgs {
  MasterWeight parameter;
  Tensor grad, exp_avg;
  Tensor lr, weight_decay, scale;
  double beta1 = 0.95, beta2 = 0.98;
  bool decay = true;
};

// Muon's update direction before orthogonalisation (Jordan et al. 2024): g = grad * scale; m +=
// (1-mu) (g - m); direction = nesterov ? (1-mu) g + mu m : m. All f32 (f64), of one shape,
// contiguous; scale f64 0-d.
struct MuonMomentumArgs {
  Tensor grad, momentum, scale, direction;
  double mu = 0.95;
  bool nesterov = false;
};

// out = x / max(sqrt(sum of partials in ascending order), eps): x scaled to unit Frobenius norm.
// partials are the sums of squares of x. x f32 (f64), out that or bf16, of one shape, contiguous;
// out may be x. partials f64 [n]. The factor is f64, rounded once.
struct UnitNormArgs {
  Tensor x, partials, out;
  double eps = 1e-7;
};

// out = x_weight x + y_weight y, of one shape, contiguous; each f32 or bf16 (all f64), the sum in
// f32 (f64), rounded once. out may be x or y.
struct WeightedSumArgs {
  Tensor x, y, out;
  double x_weight = 1, y_weight = 1;
};

void check(const GradScaleArgs& args);
void check(const AdamArgs& args);
void check(const SgdArgs& args);
void check(const LionArgs& args);
void check(const MuonMomentumArgs& args);
void check(const UnitNormArgs& args);
void check(const WeightedSumArgs& args);

template <class F>
void visit(GradScaleArgs& a, F&& f) {
  f("partials", Access::read, a.partials);
  f("divisor", Access::read, a.divisor);
  f("norm", Access::write, a.norm);
  f("scale", Access::write, a.scale);
}
template <class F>
void visit(AdamArgs& a, F&& f) {
  f("grad", Access::read, a.grad);
  f("lr", Access::read, a.lr);
  f("weight_decay", Access::read, a.weight_decay);
  f("step", Access::read, a.step);
  f("scale", Access::read, a.scale);
  f("parameter", Access::update, a.parameter.value);
  f("remainder", Access::update, a.parameter.remainder);
  f("exp_avg", Access::update, a.exp_avg);
  f("exp_avg_sq", Access::update, a.exp_avg_sq);
}
template <class F>
void visit(SgdArgs& a, F&& f) {
  f("grad", Access::read, a.grad);
  f("lr", Access::read, a.lr);
  f("weight_decay", Access::read, a.weight_decay);
  f("step", Access::read, a.step);
  f("scale", Access::read, a.scale);
  f("parameter", Access::update, a.parameter.value);
  f("remainder", Access::update, a.parameter.remainder);
  f("buffer", Access::update, a.buffer);
}
template <class F>
void visit(LionArgs& a, F&& f) {
  f("grad", Access::read, a.grad);
  f("lr", Access::read, a.lr);
  f("weight_decay", Access::read, a.weight_decay);
  f("scale", Access::read, a.scale);
  f("parameter", Access::update, a.parameter.value);
  f("remainder", Access::update, a.parameter.remainder);
  f("exp_avg", Access::update, a.exp_avg);
}
template <class F>
void visit(MuonMomentumArgs& a, F&& f) {
  f("grad", Access::read, a.grad);
  f("scale", Access::read, a.scale);
  f("momentum", Access::update, a.momentum);
  f("direction", Access::write, a.direction);
}
template <class F>
void visit(UnitNormArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("partials", Access::read, a.partials);
  f("out", Access::write, a.out);
}
template <class F>
void visit(WeightedSumArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("y", Access::read, a.y);
  f("out", Access::write, a.out);
}

}  // namespace megatron::kernels
