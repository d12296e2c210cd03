#include "ops/scale.h"

namespace megatron::ops {
namespace {

struct ScaleAttributes {
  double factor;
};

void scale_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& dout = backward.gradient(0);
  Tensor dx = backward.empty(dout.shape(), dout.dtype(), "scale.dx");
  const double factor = backward.attributes<ScaleAttributes>().factor;
  backward.kernels().scale({.factor = factor, .x = dout, .out = dx}, backward.stream());
  backward.set(0, dx);
}

}  // namespace

Var scale(Tape& tape, const Var& x, double factor) {
  if (factor == 1) return x;
  Tensor out = tape.empty(x.value.shape(), x.value.dtype(), "scale");
  tape.kernels().scale({.factor = factor, .x = x.value, .out = out}, tape.stream());
  Node node{.name = "scale", .inputs = {x.id}, .dgrad = scale_dgrad};
  node.attributes = ScaleAttributes{factor};
  return tape.record_one(std::move(node), out);
}

}  // namespace megatron::ops
