#include "ops/soft_cap.h"

namespace megatron::ops {
namespace {

struct SoftCapAttributes {
  double cap;
};

void soft_cap_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor &out = backward.saved(0), &dout = backward.gradient(0);
  Tensor dx = backward.empty(dout.shape(), dout.dtype(), "soft_cap.dx");
  backward.kernels().soft_cap_backward(
      {.cap = backward.attributes<SoftCapAttributes>().cap, .out = out, .dout = dout, .dx = dx},
      backward.stream());
  backward.set(0, dx);
}

}  // namespace

Var soft_cap(Tape& tape, const Var& x, double cap) {
  if (cap == 0) return x;
  // Backward needs the capped values in full precision.
  const DType type = tape.recording() ? kernels::accumulator(x.value.dtype()) : x.value.dtype();
  Tensor wide = x.value;
  if (type != x.value.dtype()) {
    wide = tape.empty(x.value.shape(), type, "soft_cap");
    tape.kernels().copy({.x = x.value, .out = wide}, tape.stream());
  }
  Tensor capped = tape.empty(x.value.shape(), type, "soft_cap");
  tape.kernels().soft_cap({.cap = cap, .x = wide, .out = capped}, tape.stream());
  Tensor out = capped;
  if (type != x.value.dtype()) {
    out = tape.empty(x.value.shape(), x.value.dtype(), "soft_cap");
    tape.kernels().copy({.x = capped, .out = out}, tape.stream());
  }
  Node node{.name = "soft_cap", .inputs = {x.id}, .saved = {capped}, .dgrad = soft_cap_dgrad};
  node.attributes = SoftCapAttributes{cap};
  return tape.record_one(std::move(node), out);
}

}  // namespace megatron::ops
