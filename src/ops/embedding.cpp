#include "ops/embedding.h"

namespace megatron::ops {
namespace {

void embedding_wgrad(Backward& backward) {
  const GradSlot slot = backward.grad_slot(0);
  if (!slot.out.defined()) return;
  backward.kernels().embedding_backward(
      {.ids = backward.saved(0), .dout = backward.gradient(0), .dtable = slot}, backward.stream());
}

}  // namespace

Var embedding(Tape& tape, const Tensor& ids, const Weight& table) {
  const Tensor& table_VH = table.value();
  Tensor out_TH = tape.empty({ids.elements(), table_VH.size(1)}, table_VH.dtype(), "embedding");
  tape.kernels().embedding({.ids = ids, .table = table_VH, .out = out_TH}, tape.stream());
  return tape.record_one(
      {.name = "embedding", .saved = {ids}, .weights = {table}, .wgrad = embedding_wgrad}, out_TH);
}

}  // namespace megatron::ops
