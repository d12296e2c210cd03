#include "ops/columns.h"

#include "base/error.h"

namespace megatron::ops {
namespace {

void put_columns(Tape& tape, const Tensor& x, const Tensor& out) {
  tape.kernels().copy({.x = x, .out = out}, tape.stream());
}

Tensor columns_joined(Tape& tape, const Tensor& a, const Tensor& b, std::string_view label) {
  const Tensor both = tape.empty({a.size(0), a.size(1) + b.size(1)}, a.dtype(), label);
  put_columns(tape, a, both.slice(1, 0, a.size(1)));
  put_columns(tape, b, both.slice(1, a.size(1), b.size(1)));
  return both;
}

Tensor columns_of(Tape& tape, const Tensor& x, int64_t begin, int64_t size,
                  std::string_view label) {
  const Tensor part = tape.empty({x.size(0), size}, x.dtype(), label);
  put_columns(tape, x.slice(1, begin, size), part);
  return part;
}

void split_columns_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor &first = backward.gradient(0), &rest = backward.gradient(1);
  MG_ASSERT(first.defined() && rest.defined());
  backward.set(0, columns_joined(backward.tape(), first, rest, "split_columns.dx"));
}

struct JoinedShapes {
  Shape a, b;
};

Tensor as_columns(const Tensor& x) { return x.shape().rank() == 1 ? x.view({x.size(0), 1}) : x; }

void join_columns_dgrad(Backward& backward) {
  const Tensor& gradient = backward.gradient(0);
  const auto& [a, b] = backward.attributes<JoinedShapes>();
  const int64_t first = a.rank() == 1 ? 1 : a[1];
  if (backward.needs(0))
    backward.set(0, columns_of(backward.tape(), gradient, 0, first, "join_columns.da").view(a));
  if (backward.needs(1))
    backward.set(
        1, columns_of(backward.tape(), gradient, first, gradient.size(1) - first, "join_columns.db")
               .view(b));
}

// Columns of blocks with a factor other than 1 are multiplied by it; kernels scale dense tensors.
void scale_blocks(Tape& tape, const Tensor& x, const std::vector<ScaledColumns>& blocks) {
  int64_t first = 0;
  for (const auto& [columns, factor] : blocks) {
    const Tensor part = x.slice(1, first, columns);
    first += columns;
    if (factor == 1) continue;
    const Tensor dense = tape.empty(part.shape(), part.dtype(), "scale_columns");
    put_columns(tape, part, dense);
    tape.kernels().scale({.factor = factor, .x = dense, .out = dense}, tape.stream());
    put_columns(tape, dense, part);
  }
  MG_ASSERT(first == x.size(1));
}

void scale_columns_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& dout = backward.gradient(0);
  const Tensor dx = backward.empty(dout.shape(), dout.dtype(), "scale_columns.dx");
  put_columns(backward.tape(), dout, dx);
  scale_blocks(backward.tape(), dx, backward.attributes<std::vector<ScaledColumns>>());
  backward.set(0, dx);
}

}  // namespace

Var scale_columns(Tape& tape, Var&& x, std::vector<ScaledColumns> blocks) {
  const Tensor value = x.value;
  scale_blocks(tape, value, blocks);
  Node node{.name = "scale_columns", .inputs = {x.id}, .dgrad = scale_columns_dgrad};
  node.attributes = std::move(blocks);
  return tape.record_one(std::move(node), value);
}

std::array<Var, 2> split_columns(Tape& tape, const Var& x, int64_t first) {
  const int64_t rest = x.value.size(1) - first;
  Node node{.name = "split_columns", .inputs = {x.id}, .dgrad = split_columns_dgrad};
  const std::vector<Var> out =
      tape.record(std::move(node), {columns_of(tape, x.value, 0, first, "split_columns"),
                                    columns_of(tape, x.value, first, rest, "split_columns")});
  return {out[0], out[1]};
}

Var join_columns(Tape& tape, const Var& a, const Var& b) {
  MG_ASSERT(a.value.size(0) == b.value.size(0));
  Node node{.name = "join_columns", .inputs = {a.id, b.id}, .dgrad = join_columns_dgrad};
  node.attributes = JoinedShapes{a.value.shape(), b.value.shape()};
  return tape.record_one(std::move(node), columns_joined(tape, as_columns(a.value),
                                                         as_columns(b.value), "join_columns"));
}

}  // namespace megatron::ops
