#include "ops/embedding.h"

namespace megatron::ops {
namespace {

struct Rows {
  int64_t first = 0;
  bool part = false;
};

void embedding_wgrad(Backward& backward) {
  const GradSlot slot = backward.grad_slot(0);
  if (!slot.out.defined()) return;
  const auto& [first, part] = backward.attributes<Rows>();
  backward.kernels().embedding_backward({.ids = backward.saved(0),
                                         .dout = backward.gradient(0),
                                         .dtable = slot,
                                         .first = first,
                                         .part = part},
                                        backward.stream());
}

Var look_up(Tape& tape, const Tensor& ids, const Weight& table, const Rows& rows,
            MemoryClass memory) {
  const Tensor& table_VH = table.value();
  Tensor out_TH = Tensor::empty(tape.runtime().arena(memory), {ids.elements(), table_VH.size(1)},
                                table_VH.dtype(), "embedding");
  tape.kernels().embedding(
      {.ids = ids, .table = table_VH, .out = out_TH, .first = rows.first, .part = rows.part},
      tape.stream());
  Node node{.name = "embedding", .saved = {ids}, .weights = {table}, .wgrad = embedding_wgrad};
  node.attributes = rows;
  return tape.record_one(std::move(node), out_TH);
}

}  // namespace

Var embedding(Tape& tape, const Tensor& ids, const Weight& table) {
  return look_up(tape, ids, table, {}, MemoryClass::activations);
}

Var embedding_part(Tape& tape, const Tensor& ids, const Weight& table, int64_t first,
                   MemoryClass memory) {
  return look_up(tape, ids, table, {first, true}, memory);
}

}  // namespace megatron::ops
