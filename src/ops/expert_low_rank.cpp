// R rows of experts
#include "ops/expert_low_rank.h"

#include "ops/elementwise.h"
#include "ops/expert_rows.h"
#include "ops/scale.h"

namespace megatron::ops {
namespace {

using Part = ExpertLowRank::Part;

struct PlacedColumns {
  std::vector<int64_t> begin, size;
};

void place_columns_dgrad(Backward& backward) {
  const auto& columns = backward.attributes<PlacedColumns>();
  const Tensor& dout = backward.gradient(0);
  for (size_t i = 0; i < columns.begin.size(); ++i) {
    if (!backward.needs(i)) continue;
    Tensor dx = backward.empty({dout.size(0), columns.size[i]}, dout.dtype(), "place_columns.dx");
    backward.kernels().copy({.x = dout.slice(1, columns.begin[i], columns.size[i]), .out = dx},
                            backward.stream());
    backward.set(i, dx);
  }
}

// [R,width] with one tensor at each part's columns, and zeros elsewhere.
Var place_columns(Tape& tape, const std::vector<Part>& parts, const std::vector<Var>& tensors,
                  int64_t width) {
  const Tensor& first = tensors[0].value;
  Tensor out = tape.empty({first.size(0), width}, first.dtype(), "place_columns");
  Node node{.name = "place_columns", .dgrad = place_columns_dgrad};
  PlacedColumns columns;
  int64_t covered = 0;
  for (const Var& x : tensors) covered += x.value.size(1);
  if (covered < width) tape.kernels().fill({.out = out, .value = 0}, tape.stream());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& x = tensors[i].value;
    columns.begin.push_back(parts[i].row);
    columns.size.push_back(x.size(1));
    tape.kernels().copy({.x = x, .out = out.slice(1, parts[i].row, x.size(1))}, tape.stream());
    node.inputs.push_back(tensors[i].id);
  }
  node.attributes = std::move(columns);
  return tape.record_one(std::move(node), out);
}

}  // namespace

Var add_low_rank(Tape& tape, const ExpertLowRank& adapter, const Var& x, const Var& y,
                 const Tensor& offsets) {
  if (adapter.parts.empty() || !tape.adapts()) return y;
  std::vector<Var> added;
  for (const Part& part : adapter.parts) {
    const Var inner_Rr = scale(tape, grouped_linear(tape, x, part.a, {}, offsets), part.scale);
    added.push_back(grouped_linear(tape, inner_Rr, part.b, {}, offsets));
  }
  const int64_t width = y.value.size(1);
  if (added.size() == 1 && added[0].value.size(1) == width) return add(tape, y, added[0]);
  return add(tape, y, place_columns(tape, adapter.parts, added, width));
}

}  // namespace megatron::ops
