#include "kernels/norm.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const AddNormArgs& args, NormKind kind) {
  const bool layer = kind == NormKind::layer;
  const Rules rules(layer ? "add_layer_norm" : "add_rms_norm", args);
  rules.require(
      args.x.defined() && args.x.rank() == 2 && args.x.is_contiguous() && is_float_type(args.x),
      "x [T,H] contiguous");
  const Shape shape = args.x.shape();
  const DType type = args.x.dtype();
  rules.require(args.sum.defined() || !args.residual.defined(), "a residual needs the sum");
  if (args.residual.defined()) rules.dense(args.residual, shape, type, "residual as x");
  if (args.sum.defined()) rules.dense(args.sum, shape, type, "sum as x");
  rules.dense(args.normed, shape, type, "normed as x");
  rules.dense(args.weight, {shape[1]}, type, "weight [H] of the type of x");
  rules.dense(args.rstd, {shape[0]}, accumulator(type), "rstd f32 (f64) [T]");
  rules.require((layer || !args.bias.defined()) && layer == args.mean.defined(),
                "bias and mean with LayerNorm only");
  if (!layer) return;
  if (args.bias.defined()) rules.dense(args.bias, {shape[1]}, type, "bias [H] of the type of x");
  rules.dense(args.mean, {shape[0]}, accumulator(type), "mean f32 (f64) [T]");
}

void check(const AddNormBackwardArgs& args, NormKind kind) {
  const bool layer = kind == NormKind::layer;
  const Rules rules(layer ? "add_layer_norm_backward" : "add_rms_norm_backward", args);
  rules.require(args.sum.defined() && args.sum.rank() == 2 && args.sum.is_contiguous() &&
                    is_float_type(args.sum),
                "sum [T,H] contiguous");
  const Shape shape = args.sum.shape();
  const DType type = args.sum.dtype();
  rules.dense(args.dnormed, shape, type, "dnormed as sum");
  rules.dense(args.dsum, shape, type, "dsum as sum");
  if (args.dsum_in.defined()) rules.dense(args.dsum_in, shape, type, "dsum_in as sum");
  rules.dense(args.weight, {shape[1]}, type, "weight [H] of the type of sum");
  rules.dense(args.rstd, {shape[0]}, accumulator(type), "rstd f32 (f64) [T]");
  rules.dense(args.dweight.out, {shape[1]}, accumulator(type), "dweight f32 (f64) [H]");
  rules.require(args.dweight.beta == 0 || args.dweight.beta == 1, "beta is 0 or 1");
  rules.require(layer == args.mean.defined() && (layer || !args.dbias.out.defined()),
                "mean and dbias with LayerNorm only");
  if (!layer) return;
  rules.dense(args.mean, {shape[0]}, accumulator(type), "mean f32 (f64) [T]");
  if (!args.dbias.out.defined()) return;
  rules.dense(args.dbias.out, {shape[1]}, accumulator(type), "dbias f32 (f64) [H]");
  rules.require(args.dbias.beta == 0 || args.dbias.beta == 1, "beta is 0 or 1");
}

}  // namespace megatron::kernels
