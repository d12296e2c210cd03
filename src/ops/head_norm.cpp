#include "ops/head_norm.h"

#include <array>

#include "base/error.h"

namespace megatron::ops {
namespace {

struct HeadNormAttributes {
  HeadNorm norm;
  WholeRows rows;
};

// [B,S,N,D] viewed as the rows [T,G,W] that are normalised.
Tensor as_rows(const Tensor& x, const WholeRows& rows) {
  const int64_t heads = x.size(2), size = x.size(3);
  MG_ASSERT(x.size(0) == 1 || x.stride(0) == x.size(1) * x.stride(1));
  const int64_t tokens = x.size(0) * x.size(1);
  if (rows.width == 0) {
    const std::array<int64_t, 3> strides = {x.stride(1), x.stride(2), 1};
    return x.as_strided({tokens, heads, size}, strides);
  }
  MG_ASSERT(heads == 1 || x.stride(2) == size);
  const std::array<int64_t, 3> strides = {x.stride(1), heads * size, 1};
  return x.as_strided({tokens, 1, heads * size}, strides);
}

void head_norm_dgrad(Backward& backward) {
  const auto& [norm, rows] = backward.attributes<HeadNormAttributes>();
  const Tensor x = as_rows(backward.saved(0), rows), dout = as_rows(backward.gradient(0), rows);
  const Tensor dx = backward.empty(backward.saved(0).shape(), x.dtype(), "head_norm.dx");
  kernels::HeadNormBackwardArgs args{
      .kind = norm.kind,
      .x = x,
      .weight = norm.weight ? norm.weight.value() : Tensor(),
      .dout = dout,
      .mean = norm.kind == kernels::NormKind::layer ? backward.saved(2) : Tensor(),
      .rstd = backward.saved(1),
      .weight_offset = norm.weight_offset,
      .dx = as_rows(dx, rows)};
  if (norm.weight) args.dweight = backward.grad_slot(0);
  if (norm.bias) args.dbias = backward.grad_slot(1);
  if (rows.add_up) {
    args.row_width = rows.width;
    args.products = backward.empty(args.rstd.shape(), args.rstd.dtype(), "head_norm.products");
    backward.kernels().row_dot({.a = dout,
                                .b = x,
                                .weight = args.weight,
                                .weight_offset = norm.weight_offset,
                                .out = args.products},
                               backward.stream());
    rows.add_up(args.products, backward.stream());
  }
  backward.kernels().head_norm_backward(args, backward.stream());
  if (backward.needs(0)) backward.set(0, dx);
}

}  // namespace

Var head_norm(Tape& tape, const Var& x, const HeadNorm& norm, const WholeRows& rows) {
  const Tensor in = as_rows(x.value, rows);
  const Tensor out = tape.empty(x.value.shape(), in.dtype(), "head_norm");
  const DType statistics = kernels::accumulator(in.dtype());
  const Shape per_row = {in.size(0), in.size(1)};
  kernels::HeadNormArgs args{.kind = norm.kind,
                             .x = in,
                             .weight = norm.weight ? norm.weight.value() : Tensor(),
                             .bias = norm.bias ? norm.bias.value() : Tensor(),
                             .weight_offset = norm.weight_offset,
                             .eps = norm.eps,
                             .out = as_rows(out, rows),
                             .rstd = tape.empty(per_row, statistics, "head_norm.rstd")};
  Node node{.name = "head_norm",
            .inputs = {x.id},
            .saved = {x.value, args.rstd},
            .dgrad = head_norm_dgrad};
  if (norm.kind == kernels::NormKind::layer) {
    args.mean = tape.empty(per_row, statistics, "head_norm.mean");
    node.saved.push_back(args.mean);
  }
  if (norm.weight) node.weights.push_back(norm.weight);
  if (norm.bias) node.weights.push_back(norm.bias);
  if (rows.add_up) {
    args.row_width = rows.width;
    args.squares = tape.empty(per_row, statistics, "head_norm.squares");
    tape.kernels().row_dot({.a = in, .b = in, .out = args.squares}, tape.stream());
    rows.add_up(args.squares, tape.stream());
  }
  tape.kernels().head_norm(args, tape.stream());
  node.attributes = HeadNormAttributes{norm, rows};
  return tape.record_one(std::move(node), out);
}

}  // namespace megatron::ops
