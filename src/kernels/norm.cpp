#include "kernels/norm.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const AddNormArgs& args, NormKind kind) {
  const bool layer = kind == NormKind::layer;
  const Rules rules(layer ? "add_layer_norm" : "add_rms_norm", args);
  rules.floats(args.x, 2, "x [T,H] contiguous");
  const Shape shape = args.x.shape();
  const DType type = args.x.dtype();
  rules.require(args.sum.defined() || !args.residual.defined(), "a residual needs the sum");
  rules.optional(args.residual, shape, type, "residual as x");
  rules.optional(args.sum, shape, type, "sum as x");
  rules.dense(args.normed, shape, type, "normed as x");
  rules.dense(args.weight, {shape[1]}, type, "weight [H] of the type of x");
  rules.dense(args.rstd, {shape[0]}, accumulator(type), "rstd f32 (f64) [T]");
  rules.require((layer || !args.bias.defined()) && layer == args.mean.defined(),
                "bias and mean with LayerNorm only");
  if (!layer) return;
  rules.optional(args.bias, {shape[1]}, type, "bias [H] of the type of x");
  rules.dense(args.mean, {shape[0]}, accumulator(type), "mean f32 (f64) [T]");
}

void check(const AddNormBackwardArgs& args, NormKind kind) {
  const bool layer = kind == NormKind::layer;
  const Rules rules(layer ? "add_layer_norm_backward" : "add_rms_norm_backward", args);
  rules.floats(args.sum, 2, "sum [T,H] contiguous");
  const Shape shape = args.sum.shape();
  const DType type = args.sum.dtype();
  rules.dense(args.dnormed, shape, type, "dnormed as sum");
  rules.dense(args.dsum, shape, type, "dsum as sum");
  rules.optional(args.dsum_in, shape, type, "dsum_in as sum");
  rules.dense(args.weight, {shape[1]}, type, "weight [H] of the type of sum");
  rules.dense(args.rstd, {shape[0]}, accumulator(type), "rstd f32 (f64) [T]");
  rules.sum(args.dweight, {shape[1]}, accumulator(type), "dweight f32 (f64) [H]");
  rules.require(layer == args.mean.defined() && (layer || !args.dbias.out.defined()),
                "mean and dbias with LayerNorm only");
  if (!layer) return;
  rules.dense(args.mean, {shape[0]}, accumulator(type), "mean f32 (f64) [T]");
  rules.optional(args.dbias, {shape[1]}, accumulator(type), "dbias f32 (f64) [H]");
}

}  // namespace megatron::kernels
