#include "ops/norm.h"

namespace megatron::ops {
namespace {

struct NormAttributes {
  bool layer_norm = false;
  double weight_offset = 0;
};

// saved: sum, rstd, mean (LayerNorm); the weight is read from the parameter. The gradient of the
// sum is that of both x and r.
void add_norm_dgrad(Backward& backward) {
  const auto [layer_norm, weight_offset] = backward.attributes<NormAttributes>();
  const Tensor& sum = backward.saved(0);
  Tensor dnormed = backward.gradient(0);
  if (!dnormed.defined()) {
    dnormed = backward.empty(sum.shape(), sum.dtype(), "norm.zero_gradient");
    backward.kernels().fill({.out = dnormed, .value = 0}, backward.stream());
  }
  kernels::AddNormBackwardArgs args{.dnormed = dnormed,
                                    .dsum_in = backward.gradient(1),
                                    .sum = sum,
                                    .weight = backward.weight(0).value(),
                                    .mean = layer_norm ? backward.saved(2) : Tensor(),
                                    .rstd = backward.saved(1),
                                    .dsum = backward.empty(sum.shape(), sum.dtype(), "norm.dsum"),
                                    .dweight = backward.grad_slot(0),
                                    .weight_offset = weight_offset};
  // The kernels always sum the weight's gradient.
  if (!args.dweight.out.defined())
    args.dweight = {
        backward.empty({sum.size(1)}, kernels::accumulator(sum.dtype()), "norm.no_dweight")};
  if (layer_norm) {
    if (backward.weights() > 1) args.dbias = backward.grad_slot(1);
    backward.kernels().add_layer_norm_backward(args, backward.stream());
  } else {
    backward.kernels().add_rms_norm_backward(args, backward.stream());
  }
  if (backward.needs(0)) backward.set(0, args.dsum);
  if (backward.needs(1)) backward.set(1, args.dsum);
}

AddNorm add_norm(Tape& tape, const Var& x, const Var& r, const Weight& weight, const Weight& bias,
                 double eps, NormAttributes attributes) {
  const bool layer_norm = attributes.layer_norm;
  const Shape shape = x.value.shape();
  const DType statistics = kernels::accumulator(x.value.dtype());
  kernels::AddNormArgs args{.x = x.value,
                            .residual = r.value,
                            .weight = weight.value(),
                            .eps = eps,
                            .normed = tape.empty(shape, x.value.dtype(), "norm.normed"),
                            .rstd = tape.empty({shape[0]}, statistics, "norm.rstd"),
                            .weight_offset = attributes.weight_offset};
  Tensor sum = x.value;
  if (r.value.defined()) sum = args.sum = tape.empty(shape, x.value.dtype(), "norm.residual");
  Node node{.inputs = {x.id, r.id},
            .saved = {sum, args.rstd},
            .weights = {weight},
            .dgrad = add_norm_dgrad};
  if (layer_norm) {
    args.mean = tape.empty({shape[0]}, statistics, "norm.mean");
    node.saved.push_back(args.mean);
    if (bias) {
      args.bias = bias.value();
      node.weights.push_back(bias);
    }
    node.name = "add_layer_norm";
    tape.kernels().add_layer_norm(args, tape.stream());
  } else {
    node.name = "add_rms_norm";
    tape.kernels().add_rms_norm(args, tape.stream());
  }
  node.attributes = attributes;
  const std::vector<Var> out = tape.record(std::move(node), {args.normed, sum});
  return {out[0], out[1]};
}

}  // namespace

AddNorm add_rms_norm(Tape& tape, const Var& x, const Var& r, const Weight& weight, double eps,
                     double weight_offset) {
  return add_norm(tape, x, r, weight, {}, eps, {false, weight_offset});
}

AddNorm add_layer_norm(Tape& tape, const Var& x, const Var& r, const Weight& weight,
                       const Weight& bias, double eps, double weight_offset) {
  return add_norm(tape, x, r, weight, bias, eps, {true, weight_offset});
}

}  // namespace megatron::ops
