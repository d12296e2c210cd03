#include "ops/linear.h"

namespace megatron::ops {
namespace {

void linear_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& dy = backward.gradient(0);
  const Tensor& w = backward.weight(0).value();
  Tensor dx = backward.empty({dy.size(0), w.size(1)}, w.dtype(), "linear.dx");
  backward.kernels().gemm({.a = dy, .b = w, .out = dx}, backward.stream());
  backward.set(0, dx);
}

void linear_wgrad(Backward& backward) {
  const Tensor& dy = backward.gradient(0);
  if (const GradSlot dw = backward.grad_slot(0); dw.out.defined()) {
    backward.kernels().gemm(
        {.a = dy, .b = backward.saved(0), .out = dw.out, .transpose_a = true, .beta = dw.beta},
        backward.stream());
  }
  if (backward.weights() < 2) return;
  if (const GradSlot db = backward.grad_slot(1); db.out.defined()) {
    backward.kernels().column_sum({.x = dy, .out = db}, backward.stream());
  }
}

}  // namespace

Var linear(Tape& tape, const Var& x, const Weight& weight, const Weight& bias, MemoryClass memory) {
  const Tensor& w = weight.value();
  Tensor y = Tensor::empty(tape.runtime().arena(memory), {x.value.size(0), w.size(0)}, w.dtype(),
                           "linear.y");
  tape.kernels().gemm(
      {.a = x.value, .b = w, .out = y, .transpose_b = true, .bias = bias ? bias.value() : Tensor()},
      tape.stream());
  Node node{.name = "linear",
            .inputs = {x.id},
            .saved = {x.value},
            .weights = {weight},
            .dgrad = linear_dgrad,
            .wgrad = linear_wgrad};
  if (bias) node.weights.push_back(bias);
  return tape.record_one(std::move(node), y);
}

}  // namespace megatron::ops
