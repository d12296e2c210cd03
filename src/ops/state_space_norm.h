// The gated norm of a state space, whose groups of heads may be divided among ranks.
#pragma once

#include "ops/state_space.h"

namespace megatron::ops {

// The norm of rows [T, H P] of scans and gates.
struct GatedNorm {
  kernels::GateOrder order = kernels::GateOrder::gate_first;
  int64_t groups = 1;   // of this rank's heads
  int64_t sharing = 1;  // ranks that have heads of its group; more than 1: it has one group
  double eps = 0;
  Tensor weight;  // [H P]; undefined for gate_only

  bool is_shared() const { return sharing > 1 && order != kernels::GateOrder::gate_only; }
};
// rstd: undefined for gate_only. middle: what a shared group's norm and gate hand to each other,
// [T, H P].
struct GatedNormSaved {
  Tensor rstd, middle;
};

// Writes out. exchange: not null for a shared group.
GatedNormSaved gated_norm(const GatedNorm& norm, const StateSpaceExchange* exchange,
                          const Tensor& x, const Tensor& z, const Tensor& out, Tape& tape);
// Writes dx and dz, and the weight's gradient.
void gated_norm_backward(const GatedNorm& norm, const StateSpaceExchange* exchange, const Tensor& x,
                         const Tensor& z, const GatedNormSaved& saved, const Tensor& dout,
                         const Tensor& dx, const Tensor& dz, const GradSlot& dweight, Tape& tape);

}  // namespace megatron::ops
