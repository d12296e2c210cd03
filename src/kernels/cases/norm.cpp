#include <fmt/core.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Norm {
  int64_t rows = 1, width = 1;
  bool residual = true, sum = true;  // forward
  bool dsum_in = true;               // backward
  float beta = 0;
  bool one_plus = false, bias = true;  // bias: LayerNorm only
  Layout layout;
  bool real = false, large = false;
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("t={} h={} {}{}{}", rows, width, describe(type, layout),
                       one_plus ? " 1+w" : "", bias ? "" : " no bias");
  }
};

template <bool layer>
AddNormArgs norm_args(Inputs& inputs, const Norm& n) {
  const Shape shape{n.rows, n.width};
  const DType statistics = accumulator(n.type);
  AddNormArgs args{.x = inputs.normal("x", shape, n.type, 1, n.layout)};
  if (n.residual) args.residual = inputs.normal("residual", shape, n.type, 2, n.layout);
  args.weight = inputs.normal("weight", {n.width}, n.type, 1, n.layout);
  if (n.one_plus) args.weight_offset = 1;
  if (layer && n.bias) args.bias = inputs.normal("bias", {n.width}, n.type, 1, n.layout);
  if (n.sum) args.sum = inputs.output("sum", shape, n.type, n.layout);
  args.normed = inputs.output("normed", shape, n.type, n.layout);
  if (layer) args.mean = inputs.output("mean", {n.rows}, statistics);
  args.rstd = inputs.output("rstd", {n.rows}, statistics);
  return args;
}

// Consistent inputs of backward: the statistics come from the forward.
template <bool layer>
AddNormBackwardArgs norm_backward_args(Inputs& inputs, const Norm& n) {
  Inputs forward_inputs(inputs.runtime());
  Norm plain = n;
  plain.residual = false;
  const AddNormArgs forward = norm_args<layer>(forward_inputs, plain);
  const Table& oracle = table(inputs.forward_of(n.real));
  layer ? oracle.add_layer_norm(forward, inputs.runtime().stream())
        : oracle.add_rms_norm(forward, inputs.runtime().stream());
  const Shape shape{n.rows, n.width};
  const DType wide = accumulator(n.type);
  AddNormBackwardArgs args{.dnormed = inputs.normal("dnormed", shape, n.type, 1, n.layout)};
  if (n.dsum_in) args.dsum_in = inputs.normal("dsum_in", shape, n.type, 1, n.layout);
  args.sum = forward.x;
  args.weight = forward.weight;
  args.mean = forward.mean;
  args.rstd = forward.rstd;
  args.dsum = inputs.output("dsum", shape, n.type, n.layout);
  args.dweight = inputs.sum("dweight", {n.width}, wide, n.beta);
  args.weight_offset = forward.weight_offset;
  if (layer && n.bias) args.dbias = inputs.sum("dbias", {n.width}, wide, n.beta);
  return args;
}

// Means over H lose 0.4 sqrt(H) u; a handful of roundings follow.
template <class Kernel, class Arguments>
void add_forward(std::vector<Case>& cases, const Norm& n, Kernel kernel, Arguments arguments) {
  cases.push_back(case_of(kernel, n, tolerance(n.type, 4 + 0.4 * std::sqrt(n.width)), arguments));
  cases.back().name += n.residual ? " residual" : n.sum ? " copied" : "";
}

// The means' errors meet terms that cancel, and weight gradients add up T rows.
template <class Kernel, class Arguments>
void add_backward(std::vector<Case>& cases, const Norm& n, Kernel kernel, Arguments arguments) {
  const double roundings = 8 + std::sqrt(n.width) + std::sqrt(n.rows);
  cases.push_back(case_of(kernel, n, tolerance(n.type, roundings), arguments));
  if (n.dsum_in) cases.back().name += " added";
  if (n.beta != 0) cases.back().name += " accumulated";
}

std::vector<Norm> norm_shapes() {
  std::vector<Norm> list = in_types<Norm>({
      {.rows = 1, .width = 2, .residual = false, .sum = false, .dsum_in = false},
      {.rows = 2, .width = 16, .residual = false, .beta = 1},
      {.rows = 7, .width = 33},
      {.rows = 7, .width = 33, .dsum_in = false, .beta = 1, .layout = kMisaligned},
      {.rows = 0, .width = 8},
      {.rows = 0, .width = 8, .residual = false, .beta = 1},
      {.rows = 150, .width = 96, .beta = 1},
      // Rows of whole vectors: many rows with few threads each, and one row with many threads.
      {.rows = 300, .width = 264, .beta = 1},
      {.rows = 5, .width = 2048},
      {.rows = 40, .width = 72, .one_plus = true, .bias = false},
      {.rows = 4096, .width = 768, .beta = 1, .real = true},
  });
  for (const DType type : kFloats) {  // too long for registers
    const int64_t width = size_of(type) > 2 ? 4360 : 17000;
    list.push_back({.rows = 3, .width = width, .beta = 1, .type = type});
    list.push_back({.rows = 5, .width = width, .bias = false, .type = type});
  }
  list.push_back(
      {.rows = 4096, .width = 4096, .beta = 1, .real = true, .large = true, .type = DType::bf16});
  return list;
}

}  // namespace

void add_norm_cases(std::vector<Case>& cases) {
  for (const Norm& n : norm_shapes()) {
    add_forward(cases, n, &Table::add_rms_norm, norm_args<false>);
    add_backward(cases, n, &Table::add_rms_norm_backward, norm_backward_args<false>);
    add_forward(cases, n, &Table::add_layer_norm, norm_args<true>);
    add_backward(cases, n, &Table::add_layer_norm_backward, norm_backward_args<true>);
  }
}

}  // namespace megatron::kernels
