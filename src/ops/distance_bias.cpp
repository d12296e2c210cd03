#include "ops/distance_bias.h"

namespace megatron::ops {
namespace {

void distance_bias_wgrad(Backward& backward) {
  const GradSlot slot = backward.grad_slot(0);
  if (!slot.out.defined()) return;
  backward.kernels().embedding_backward(
      {.ids = backward.saved(0), .dout = backward.gradient(0), .dtable = slot}, backward.stream());
}

}  // namespace

Var distance_bias(Tape& tape, const Tensor& buckets, const Weight& table) {
  const Tensor& table_BN = table.value();
  const Shape shape{buckets.size(0), table_BN.size(1)};
  const DType wide = kernels::accumulator(table_BN.dtype());
  Tensor out = tape.empty(shape, table_BN.dtype(), "distance_bias");
  tape.kernels().embedding({.ids = buckets, .table = table_BN, .out = out}, tape.stream());
  if (table_BN.dtype() != wide) {
    const Tensor widened = tape.empty(shape, wide, "distance_bias");
    tape.kernels().copy({.x = out, .out = widened}, tape.stream());
    out = widened;
  }
  return tape.record_one({.name = "distance_bias",
                          .saved = {buckets},
                          .weights = {table},
                          .wgrad = distance_bias_wgrad},
                         out);
}

}  // namespace megatron::ops
