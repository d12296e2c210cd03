// RMS norm of groups of elements with a gate, after a state space (Dao & Gu 2024, section 8).
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// g = z * sigmoid(z).
//   gate_first  out = norm(x * g) * weight
//   norm_first  out = norm(x) * weight * g
//   gate_only   out = x * g, without a weight
// norm(u) = u * rstd, rstd = 1 / sqrt(mean(u^2) + eps), over each of G groups of W / G elements.
enum class GateOrder { gate_first, norm_first, gate_only };

// x, z, out [T,W], last dim contiguous, other strides free; weight [W] contiguous; one floating
// type. rstd f32 (f64) [T,G] contiguous, undefined for gate_only. Computed in f32 (f64), rounded
// once. out does not overlap x or z.
struct GatedNormArgs {
  GateOrder order = GateOrder::gate_first;
  int64_t groups = 1;
  double eps = 1e-5;
  Tensor x, z, weight, out, rstd;
};

// Gradients dx, dz [T,W], strides as x; dweight f32 (f64) [W]: sums over tokens in fixed blocks,
// the blocks in order; not computed if its out is undefined. dx and dz do not overlap an input.
struct GatedNormBackwardArgs {
  GateOrder order = GateOrder::gate_first;
  int64_t groups = 1;
  Tensor x, z, weight, rstd, dout, dx, dz;
  Accumulate dweight;
};

void check(const GatedNormArgs& args);
void check(const GatedNormBackwardArgs& args);

template <class F>
void visit(GatedNormArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("z", Access::read, a.z);
  f("weight", Access::read, a.weight);
  f("out", Access::write, a.out);
  f("rstd", Access::write, a.rstd);
}
template <class F>
void visit(GatedNormBackwardArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("z", Access::read, a.z);
  f("weight", Access::read, a.weight);
  f("rstd", Access::read, a.rstd);
  f("dout", Access::read, a.dout);
  f("dx", Access::write, a.dx);
  f("dz", Access::write, a.dz);
  f("dweight", written(a.dweight.beta), a.dweight.out);
}

}  // namespace megatron::kernels
