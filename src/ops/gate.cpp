#include "ops/gate.h"

namespace megatron::ops {
namespace {

void gate_dgrad(Backward& backward) {
  if (!backward.needs(0) && !backward.needs(1)) return;
  const Tensor& x = backward.saved(0);
  Tensor dx = backward.empty(x.shape(), x.dtype(), "gate.dx");
  Tensor dgate = backward.empty(x.shape(), x.dtype(), "gate.dgate");
  backward.kernels().gate_backward(
      {.x = x, .gate = backward.saved(1), .dout = backward.gradient(0), .dx = dx, .dgate = dgate},
      backward.stream());
  if (backward.needs(0)) backward.set(0, dx);
  if (backward.needs(1)) backward.set(1, dgate);
}

}  // namespace

Var gate(Tape& tape, const Var& x, const Var& gate) {
  Tensor out = tape.empty(x.value.shape(), x.value.dtype(), "gate");
  tape.kernels().gate({.x = x.value, .gate = gate.value, .out = out}, tape.stream());
  Node node{.name = "gate",
            .inputs = {x.id, gate.id},
            .saved = {x.value, gate.value},
            .dgrad = gate_dgrad};
  return tape.record_one(std::move(node), out);
}

}  // namespace megatron::ops
