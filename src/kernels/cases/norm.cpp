#include <fmt/core.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Norm {
  int64_t rows = 1, width = 1;
  DType type = DType::f32;
  bool residual = true, sum = true;  // forward only
  bool dsum_in = true;               // backward only
  float beta = 0;
  bool one_plus = false, bias = true;  // bias: LayerNorm only
  Layout layout;
  bool real = false, large = false;

  double elements() const { return static_cast<double>(rows * width); }
  std::string str() const {
    return fmt::format("t={} h={} {}{}{}", rows, width, describe(type, layout),
                       one_plus ? " 1+w" : "", bias ? "" : " no bias");
  }
  std::string forward_name() const {
    return str() + (residual ? " residual" : sum ? " copied" : "");
  }
  std::string backward_name() const {
    return str() + (dsum_in ? " added" : "") + (beta != 0 ? " accumulated" : "");
  }
  // Means over H lose 0.4 sqrt(H) u; a few roundings follow.
  double forward_tolerance() const { return tolerance(type, 4 + 0.4 * std::sqrt(width)); }
  // Errors of the means affect terms that cancel, and weight gradients sum T rows.
  double backward_tolerance() const {
    return tolerance(type, 8 + std::sqrt(width) + std::sqrt(rows));
  }
};

AddNormArgs forward_args(Inputs& inputs, const Norm& n, bool layer) {
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

// Consistent inputs for the backward pass: the statistics come from the forward pass.
AddNormBackwardArgs backward_args(Inputs& inputs, const Norm& n, bool layer) {
  Inputs forward_inputs(inputs.runtime());
  Norm plain = n;
  plain.residual = false;
  const AddNormArgs forward = forward_args(forward_inputs, plain, layer);
  const Table& oracle = table(inputs.forward_of(n.real));
  layer ? oracle.add_layer_norm(forward, inputs.runtime().stream())
        : oracle.add_rms_norm(forward, inputs.runtime().stream());
  const Shape shape{n.rows, n.width};
  const DType wide = accumulator(n.type);
  const auto gradient = [&](const char* name) -> Accumulate {
    if (n.beta == 0) return {inputs.output(name, {n.width}, wide), 0};
    return {inputs.updated(name, inputs.normal(name, {n.width}, wide)), 1};
  };
  AddNormBackwardArgs args{.dnormed = inputs.normal("dnormed", shape, n.type, 1, n.layout)};
  if (n.dsum_in) args.dsum_in = inputs.normal("dsum_in", shape, n.type, 1, n.layout);
  args.sum = forward.x;
  args.weight = forward.weight;
  args.mean = forward.mean;
  args.rstd = forward.rstd;
  args.dsum = inputs.output("dsum", shape, n.type, n.layout);
  args.dweight = gradient("dweight");
  args.weight_offset = forward.weight_offset;
  if (layer && n.bias) args.dbias = gradient("dbias");
  return args;
}

Case rms_forward(const Norm& n) {
  return {.kernel = "add_rms_norm",
          .name = n.forward_name(),
          .dtype = n.type,
          .tolerance = n.forward_tolerance(),
          .real = n.real,
          .large = n.large,
          .make = [n](Runtime& runtime) {
            Inputs inputs(runtime);
            const AddNormArgs args = forward_args(inputs, n, false);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.add_rms_norm(args, stream); });
          }};
}

Case rms_backward(const Norm& n) {
  return {.kernel = "add_rms_norm_backward",
          .name = n.backward_name(),
          .dtype = n.type,
          .tolerance = n.backward_tolerance(),
          .real = n.real,
          .large = n.large,
          .make = [n](Runtime& runtime) {
            Inputs inputs(runtime);
            const AddNormBackwardArgs args = backward_args(inputs, n, false);
            return inputs.call([args](Stream& stream, const Table& table) {
              table.add_rms_norm_backward(args, stream);
            });
          }};
}

Case layer_forward(const Norm& n) {
  return {.kernel = "add_layer_norm",
          .name = n.forward_name(),
          .dtype = n.type,
          .tolerance = n.forward_tolerance(),
          .real = n.real,
          .large = n.large,
          .make = [n](Runtime& runtime) {
            Inputs inputs(runtime);
            const AddNormArgs args = forward_args(inputs, n, true);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.add_layer_norm(args, stream); });
          }};
}

Case layer_backward(const Norm& n) {
  return {.kernel = "add_layer_norm_backward",
          .name = n.backward_name(),
          .dtype = n.type,
          .tolerance = n.backward_tolerance(),
          .real = n.real,
          .large = n.large,
          .make = [n](Runtime& runtime) {
            Inputs inputs(runtime);
            const AddNormBackwardArgs args = backward_args(inputs, n, true);
            return inputs.call([args](Stream& stream, const Table& table) {
              table.add_layer_norm_backward(args, stream);
            });
          }};
}

std::vector<Norm> norm_shapes() {
  std::vector<Norm> list;
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    list.push_back(
        {.rows = 1, .width = 2, .type = type, .residual = false, .sum = false, .dsum_in = false});
    list.push_back({.rows = 2, .width = 16, .type = type, .residual = false, .beta = 1});
    list.push_back({.rows = 7, .width = 33, .type = type});
    list.push_back(
        {.rows = 7, .width = 33, .type = type, .dsum_in = false, .beta = 1, .layout = kMisaligned});
    list.push_back({.rows = 0, .width = 8, .type = type});
    list.push_back({.rows = 0, .width = 8, .type = type, .residual = false, .beta = 1});
    list.push_back({.rows = 150, .width = 96, .type = type, .beta = 1});
    // Rows of whole vectors: many rows with few threads each, one row with many threads, and one
    // too long for registers.
    list.push_back({.rows = 300, .width = 264, .type = type, .beta = 1});
    list.push_back({.rows = 5, .width = 2048, .type = type});
    list.push_back({.rows = 3, .width = size_of(type) > 2 ? 4360 : 17000, .type = type, .beta = 1});
    list.push_back({.rows = 40, .width = 72, .type = type, .one_plus = true, .bias = false});
    list.push_back(
        {.rows = 5, .width = size_of(type) > 2 ? 4360 : 17000, .type = type, .bias = false});
    if (!trained(type)) continue;
    list.push_back({.rows = 4096, .width = 768, .type = type, .beta = 1, .real = true});
    if (type != DType::bf16) continue;
    list.push_back(
        {.rows = 4096, .width = 4096, .type = type, .beta = 1, .real = true, .large = true});
  }
  return list;
}

}  // namespace

void add_norm_cases(std::vector<Case>& cases) {
  for (const auto make : {rms_forward, rms_backward, layer_forward, layer_backward}) {
    for (const Norm& n : norm_shapes()) cases.push_back(make(n));
  }
}

}  // namespace megatron::kernels
