#include <fmt/core.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct HeadRows {
  int64_t tokens = 1, heads = 1, width = 8;
  NormKind kind = NormKind::rms;
  bool weight = true, bias = false, one_plus = false;
  bool packed = false;   // inputs are part of wider rows, as in the output of a qkv product
  bool divided = false;  // rows are halves of wider ones, whose sums are inputs
  float beta = 0;
  bool real = false;
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("t={} g={} w={} {}{}{}{}{}{}{}{}", tokens, heads, width, describe(type, {}),
                       kind == NormKind::layer ? " layer" : "", weight ? "" : " no weight",
                       bias ? " bias" : "", one_plus ? " 1+w" : "", packed ? " packed" : "",
                       divided ? " divided" : "", beta != 0 ? " accumulated" : "");
  }
  Shape shape() const { return {tokens, heads, width}; }
  Tensor rows(Inputs& inputs, const char* name) const {
    if (!packed) return inputs.normal(name, shape(), type);
    return inputs.normal(name, {tokens, heads + 3, width}, type).slice(1, 2, heads);
  }
  // At real sizes, outputs are contiguous.
  Tensor output(Inputs& inputs, const char* name) const {
    return inputs.output(name, shape(), type, packed && !real ? kPadded : Layout{});
  }
};

HeadNormArgs head_norm_args(Inputs& inputs, const HeadRows& h) {
  const DType wide = accumulator(h.type);
  HeadNormArgs args{
      .kind = h.kind, .x = h.rows(inputs, "x"), .weight_offset = h.one_plus ? 1.0 : 0.0};
  if (h.weight) args.weight = inputs.normal("weight", {h.width}, h.type);
  if (h.bias) args.bias = inputs.normal("bias", {h.width}, h.type);
  if (h.divided) {
    args.squares =
        inputs.positive("squares", {h.tokens, h.heads}, wide, static_cast<double>(h.width));
    args.row_width = 2 * h.width;
  }
  args.out = h.output(inputs, "out");
  if (h.kind == NormKind::layer) args.mean = inputs.output("mean", {h.tokens, h.heads}, wide);
  args.rstd = inputs.output("rstd", {h.tokens, h.heads}, wide);
  return args;
}

// The statistics come from the forward.
HeadNormBackwardArgs head_norm_backward_args(Inputs& inputs, const HeadRows& h) {
  Inputs forward_inputs(inputs.runtime());
  const HeadNormArgs f = head_norm_args(forward_inputs, h);
  table(inputs.forward_of(h.real)).head_norm(f, inputs.runtime().stream());
  const DType wide = accumulator(h.type);
  HeadNormBackwardArgs args{.kind = h.kind,
                            .x = f.x,
                            .weight = f.weight,
                            .dout = h.rows(inputs, "dout"),
                            .mean = f.mean,
                            .rstd = f.rstd,
                            .weight_offset = f.weight_offset};
  if (h.divided) {
    args.products =
        inputs.normal("products", {h.tokens, h.heads}, wide, static_cast<double>(h.width));
    args.row_width = f.row_width;
  }
  args.dx = h.output(inputs, "dx");
  if (h.weight) args.dweight = inputs.sum("dweight", {h.width}, wide, h.beta);
  if (h.bias) args.dbias = inputs.sum("dbias", {h.width}, wide, h.beta);
  return args;
}

RowDotArgs row_dot_args(Inputs& inputs, const HeadRows& h) {
  RowDotArgs args{h.rows(inputs, "a"), h.rows(inputs, "b")};
  if (h.weight) args.weight = inputs.normal("weight", {h.width}, h.type);
  args.weight_offset = h.one_plus ? 1 : 0;
  args.out = inputs.output("out", {h.tokens, h.heads}, accumulator(h.type));
  return args;
}

std::vector<HeadRows> head_norm_shapes() {
  constexpr NormKind kLayer = NormKind::layer;
  return in_types<HeadRows>({
      {},
      {.tokens = 0, .heads = 3},
      {.tokens = 7, .heads = 3, .width = 33, .packed = true, .beta = 1},
      {.tokens = 70, .heads = 5, .width = 64, .one_plus = true},
      {.tokens = 19, .heads = 2, .width = 128, .weight = false, .packed = true},
      {.tokens = 33, .heads = 2, .width = 48, .kind = kLayer, .bias = true, .packed = true},
      {.tokens = 9, .heads = 1, .width = 24, .kind = kLayer, .one_plus = true, .beta = 1},
      {.tokens = 5, .heads = 1, .width = 4360},
      {.tokens = 12, .heads = 1, .width = 96, .divided = true},
      {.tokens = 4096, .heads = 8, .width = 128, .packed = true, .real = true},
  });
}

}  // namespace

void add_head_norm_cases(std::vector<Case>& cases) {
  for (const HeadRows& h : head_norm_shapes()) {  // as add_rms_norm
    const double bound = tolerance(h.type, 4 + 0.4 * std::sqrt(h.width));
    cases.push_back(case_of(&Table::head_norm, h, bound, head_norm_args));
  }
  // Weight gradients add up the rows of all tokens and heads.
  for (const HeadRows& h : head_norm_shapes()) {
    const double bound = tolerance(h.type, 8 + std::sqrt(h.width) + std::sqrt(h.tokens * h.heads)) *
                         (h.divided ? 2 : 1);  // products of any size are added to terms of size 1
    cases.push_back(case_of(&Table::head_norm_backward, h, bound, head_norm_backward_args));
  }
  // A sum of W products of a random sign is sqrt(W) large and wrong by sqrt(W) u.
  for (const HeadRows& h : head_norm_shapes()) {
    if (h.kind == NormKind::layer || h.divided || h.beta != 0) continue;
    const double bound = tolerance(accumulator(h.type), 8 + std::sqrt(h.width));
    cases.push_back(case_of(&Table::row_dot, h, bound, row_dot_args));
  }
}

}  // namespace megatron::kernels
