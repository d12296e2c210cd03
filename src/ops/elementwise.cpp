#include "ops/elementwise.h"

namespace megatron::ops {
namespace {

void add_dgrad(Backward& backward) {
  if (backward.needs(0)) backward.set(0, backward.gradient(0));
  if (backward.needs(1)) backward.set(1, backward.gradient(0));
}

void summed_apart_dgrad(Backward& backward) { backward.set(0, backward.gradient(0)); }

void dropout_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& dout = backward.gradient(0);
  Tensor dx = backward.empty(dout.shape(), dout.dtype(), "dropout.dx");
  backward.kernels().dropout(
      {.mask = backward.attributes<kernels::DropoutArgs::Mask>(), .x = dout, .out = dx},
      backward.stream());
  backward.set(0, dx);
}

}  // namespace

Var add(Tape& tape, const Var& a, const Var& b) {
  Tensor out = tape.empty(a.value.shape(), a.value.dtype(), "add");
  tape.kernels().add({.a = a.value, .b = b.value, .out = out}, tape.stream());
  return tape.record_one({.name = "add", .inputs = {a.id, b.id}, .dgrad = add_dgrad}, out);
}

Var summed_apart(Tape& tape, const Var& x) {
  return tape.record_one({.name = "summed_apart", .inputs = {x.id}, .dgrad = summed_apart_dgrad},
                         x.value);
}

Var dropout(Tape& tape, const Var& x, const kernels::DropoutArgs::Mask& mask) {
  if (mask.p == 0) return x;
  Tensor out = tape.empty(x.value.shape(), x.value.dtype(), "dropout");
  tape.kernels().dropout({.mask = mask, .x = x.value, .out = out}, tape.stream());
  Node node{.name = "dropout", .inputs = {x.id}, .dgrad = dropout_dgrad};
  node.attributes = mask;
  return tape.record_one(std::move(node), out);
}

}  // namespace megatron::ops
