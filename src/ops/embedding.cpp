#include "ops/embedding.h"

namespace megatron::ops {
namespace {

struct Rows {
  int64_t first = 0;
  bool part = false;
  ReplacedRows replaced;
};

void embedding_wgrad(Backward& backward) {
  const auto& [first, part, replaced] = backward.attributes<Rows>();
  const auto add = [&](const GradSlot& sum, int64_t first_row, bool is_part) {
    backward.kernels().embedding_backward({.ids = backward.saved(0),
                                           .dout = backward.gradient(0),
                                           .dtable = sum,
                                           .first = first_row,
                                           .part = is_part},
                                          backward.stream());
  };
  if (const GradSlot slot = backward.grad_slot(0); slot.out.defined()) add(slot, first, part);
  if (!replaced) return;
  add_row_gradients(replaced, backward.tape(),
                    [&, begin = first](const Tensor& sum, const auto& run) {
                      add({.out = sum, .beta = 1}, begin + run.row, true);
                    });
}

Var look_up(Tape& tape, const Tensor& ids, const Weight& table, Rows rows, MemoryClass memory) {
  const Tensor& table_VH = table.value();
  Tensor out_TH = Tensor::empty(tape.runtime().arena(memory), {ids.elements(), table_VH.size(1)},
                                table_VH.dtype(), "embedding");
  if (!tape.adapts()) rows.replaced = {};
  tape.kernels().embedding(
      {.ids = ids, .table = table_VH, .out = out_TH, .first = rows.first, .part = rows.part},
      tape.stream());
  for (const ReplacedRows::Run& run : rows.replaced.runs)
    tape.kernels().embedding({.ids = ids,
                              .table = rows.replaced.values(run),
                              .out = out_TH,
                              .first = rows.first + run.row,
                              .part = true,
                              .keeps = true},
                             tape.stream());
  Node node{.name = "embedding", .saved = {ids}, .weights = {table}, .wgrad = embedding_wgrad};
  if (rows.replaced) node.weights.push_back(rows.replaced.rows);
  node.attributes = std::move(rows);
  return tape.record_one(std::move(node), out_TH);
}

}  // namespace

Var embedding(Tape& tape, const Tensor& ids, const Weight& table, const ReplacedRows& replaced) {
  return look_up(tape, ids, table, {.replaced = replaced}, MemoryClass::activations);
}

Var embedding_part(Tape& tape, const Tensor& ids, const Weight& table, int64_t first,
                   MemoryClass memory, const ReplacedRows& replaced) {
  return look_up(tape, ids, table, {first, true, replaced}, memory);
}

}  // namespace megatron::ops
