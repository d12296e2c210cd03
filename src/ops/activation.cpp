#include "ops/activation.h"

namespace megatron::ops {
namespace {

struct ActivationAttributes {
  kernels::Activation function;
  bool gated;
  double clamp, up_offset;
};

void activation_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const auto& [function, gated, clamp, up_offset] = backward.attributes<ActivationAttributes>();
  const Tensor& x = backward.saved(0);
  Tensor dx = backward.empty(x.shape(), x.dtype(), "activation.dx");
  backward.kernels().activation_backward({.function = function,
                                          .gated = gated,
                                          .x = x,
                                          .dout = backward.gradient(0),
                                          .dx = dx,
                                          .clamp = clamp,
                                          .up_offset = up_offset},
                                         backward.stream());
  backward.set(0, dx);
}

}  // namespace

Var activation(Tape& tape, const Var& x, kernels::Activation function, bool gated, double clamp,
               double up_offset) {
  Tensor out = tape.empty({x.value.size(0), gated ? x.value.size(1) / 2 : x.value.size(1)},
                          x.value.dtype(), "activation");
  tape.kernels().activation({.function = function,
                             .gated = gated,
                             .x = x.value,
                             .out = out,
                             .clamp = clamp,
                             .up_offset = up_offset},
                            tape.stream());
  Node node{.name = "activation", .inputs = {x.id}, .saved = {x.value}, .dgrad = activation_dgrad};
  node.attributes = ActivationAttributes{function, gated, clamp, up_offset};
  return tape.record_one(std::move(node), out);
}

}  // namespace megatron::ops
