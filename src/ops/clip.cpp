#include "ops/clip.h"

namespace megatron::ops {
namespace {

struct ClipAttributes {
  double limit;
};

void clip_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& x = backward.saved(0);
  Tensor dx = backward.empty(x.shape(), x.dtype(), "clip.dx");
  const double limit = backward.attributes<ClipAttributes>().limit;
  backward.kernels().clip_backward({.limit = limit, .x = x, .dout = backward.gradient(0), .dx = dx},
                                   backward.stream());
  backward.set(0, dx);
}

}  // namespace

Var clip(Tape& tape, const Var& x, double limit) {
  Tensor out = tape.empty(x.value.shape(), x.value.dtype(), "clip");
  tape.kernels().clip({.limit = limit, .x = x.value, .out = out}, tape.stream());
  Node node{.name = "clip", .inputs = {x.id}, .saved = {x.value}, .dgrad = clip_dgrad};
  node.attributes = ClipAttributes{limit};
  return tape.record_one(std::move(node), out);
}

}  // namespace megatron::ops
