#include <fmt/core.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct HeadRows {
  int64_t tokens = 1, heads = 1, width = 8;
  DType type = DType::f32;
  NormKind kind = NormKind::rms;
  bool weight = true, bias = false, one_plus = false;
  bool packed = false;   // inputs are part of wider rows, as in the output of a qkv product
  bool divided = false;  // rows are halves of wider ones, whose sums are inputs
  float beta = 0;
  bool real = false;

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

HeadNormArgs forward_args(Inputs& inputs, const HeadRows& h) {
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

// The statistics come from the forward pass.
HeadNormBackwardArgs backward_args(Inputs& inputs, const HeadRows& h) {
  Inputs forward_inputs(inputs.runtime());
  const HeadNormArgs f = forward_args(forward_inputs, h);
  table(inputs.forward_of(h.real)).head_norm(f, inputs.runtime().stream());
  const DType wide = accumulator(h.type);
  const auto gradient = [&](const char* name) -> Accumulate {
    if (h.beta == 0) return {inputs.output(name, {h.width}, wide), 0};
    return {inputs.updated(name, inputs.normal(name, {h.width}, wide)), 1};
  };
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
  if (h.weight) args.dweight = gradient("dweight");
  if (h.bias) args.dbias = gradient("dbias");
  return args;
}

Case norm_of_heads(const HeadRows& h) {
  return {.kernel = "head_norm",
          .name = h.str(),
          .dtype = h.type,
          .tolerance = tolerance(h.type, 4 + 0.4 * std::sqrt(h.width)),  // as for add_rms_norm
          .real = h.real,
          .make = [h](Runtime& runtime) {
            Inputs inputs(runtime);
            const HeadNormArgs args = forward_args(inputs, h);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.head_norm(args, stream); });
          }};
}

// Weight gradients sum the rows of all tokens and heads.
Case norm_of_heads_backward(const HeadRows& h) {
  return {.kernel = "head_norm_backward",
          .name = h.str(),
          .dtype = h.type,
          .tolerance = tolerance(h.type, 8 + std::sqrt(h.width) + std::sqrt(h.tokens * h.heads)) *
                       (h.divided ? 2 : 1),  // products of any size are added to terms of size 1
          .real = h.real,
          .make = [h](Runtime& runtime) {
            Inputs inputs(runtime);
            const HeadNormBackwardArgs args = backward_args(inputs, h);
            return inputs.call([args](Stream& stream, const Table& table) {
              table.head_norm_backward(args, stream);
            });
          }};
}

// A sum of W products of random sign has size sqrt(W) and error sqrt(W) u.
Case dot(const HeadRows& h) {
  return {.kernel = "row_dot",
          .name = h.str(),
          .dtype = h.type,
          .tolerance = tolerance(accumulator(h.type), 8 + std::sqrt(h.width)),
          .real = h.real,
          .make = [h](Runtime& runtime) {
            Inputs inputs(runtime);
            RowDotArgs args{h.rows(inputs, "a"), h.rows(inputs, "b")};
            if (h.weight) args.weight = inputs.normal("weight", {h.width}, h.type);
            args.weight_offset = h.one_plus ? 1 : 0;
            args.out = inputs.output("out", {h.tokens, h.heads}, accumulator(h.type));
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.row_dot(args, stream); });
          }};
}

std::vector<HeadRows> shapes() {
  std::vector<HeadRows> list;
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    list.push_back({.type = type});
    list.push_back({.tokens = 0, .heads = 3, .type = type});
    list.push_back({.tokens = 7, .heads = 3, .width = 33, .type = type, .packed = true, .beta = 1});
    list.push_back({.tokens = 70, .heads = 5, .width = 64, .type = type, .one_plus = true});
    list.push_back(
        {.tokens = 19, .heads = 2, .width = 128, .type = type, .weight = false, .packed = true});
    list.push_back({.tokens = 33,
                    .heads = 2,
                    .width = 48,
                    .type = type,
                    .kind = NormKind::layer,
                    .bias = true,
                    .packed = true});
    list.push_back({.tokens = 9,
                    .heads = 1,
                    .width = 24,
                    .type = type,
                    .kind = NormKind::layer,
                    .one_plus = true,
                    .beta = 1});
    list.push_back({.tokens = 5, .heads = 1, .width = 4360, .type = type});
    list.push_back({.tokens = 12, .heads = 1, .width = 96, .type = type, .divided = true});
    if (!trained(type)) continue;
    list.push_back(
        {.tokens = 4096, .heads = 8, .width = 128, .type = type, .packed = true, .real = true});
  }
  return list;
}

}  // namespace

void add_head_norm_cases(std::vector<Case>& cases) {
  for (const auto make : {norm_of_heads, norm_of_heads_backward}) {
    for (const HeadRows& h : shapes()) cases.push_back(make(h));
  }
  for (const HeadRows& h : shapes())
    if (h.kind == NormKind::rms && !h.divided && h.beta == 0) cases.push_back(dot(h));
}

}  // namespace megatron::kernels
