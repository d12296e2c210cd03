#include "kernels/head_norm.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

void check_rows(const Rules& rules, const Tensor& x, std::initializer_list<const Tensor*> alike) {
  rules.rows(x, 3, "rows [T,G,W] of a floating type, last dim contiguous");
  for (const Tensor* t : alike)
    rules.require(
        t->defined() && t->shape() == x.shape() && t->dtype() == x.dtype() && last_is_dense(*t),
        "rows alike, of one type, last dim contiguous");
}

void check_statistic(const Rules& rules, const Tensor& t, const Tensor& x, const char* rule) {
  rules.dense(t, {x.size(0), x.size(1)}, accumulator(x.dtype()), rule);
}

}  // namespace

void check(const HeadNormArgs& args) {
  const Rules rules("head_norm", args);
  const Tensor& x = args.x;
  check_rows(rules, x, {&args.out});
  const bool layer = args.kind == NormKind::layer;
  rules.optional(args.weight, {x.size(2)}, x.dtype(), "weight [W] as x");
  rules.optional(args.bias, {x.size(2)}, x.dtype(), "bias [W] as x");
  rules.require(layer || !args.bias.defined(), "a bias with a LayerNorm only");
  rules.require(layer == args.mean.defined(), "mean with a LayerNorm only");
  if (layer) check_statistic(rules, args.mean, x, "mean f32 (f64) [T,G]");
  check_statistic(rules, args.rstd, x, "rstd f32 (f64) [T,G]");
  if (!args.squares.defined()) return;
  check_statistic(rules, args.squares, x, "squares f32 (f64) [T,G]");
  rules.require(!layer && args.row_width >= x.size(2), "squares of wider rows, of an RMSNorm");
}

void check(const HeadNormBackwardArgs& args) {
  const Rules rules("head_norm_backward", args);
  const Tensor& x = args.x;
  check_rows(rules, x, {&args.dout, &args.dx});
  const bool layer = args.kind == NormKind::layer;
  const DType sums = accumulator(x.dtype());
  rules.optional(args.weight, {x.size(2)}, x.dtype(), "weight [W] as x");
  rules.optional(args.dweight, {x.size(2)}, sums, "dweight f32 (f64) [W]");
  rules.optional(args.dbias, {x.size(2)}, sums, "dbias f32 (f64) [W]");
  rules.require(layer || !args.dbias.out.defined(), "dbias with a LayerNorm only");
  rules.require(layer == args.mean.defined(), "mean with a LayerNorm only");
  if (layer) check_statistic(rules, args.mean, x, "mean f32 (f64) [T,G]");
  check_statistic(rules, args.rstd, x, "rstd f32 (f64) [T,G]");
  if (!args.products.defined()) return;
  check_statistic(rules, args.products, x, "products f32 (f64) [T,G]");
  rules.require(!layer && args.row_width >= x.size(2), "products of wider rows, of an RMSNorm");
}

void check(const RowDotArgs& args) {
  const Rules rules("row_dot", args);
  check_rows(rules, args.a, {&args.b});
  rules.optional(args.weight, {args.a.size(2)}, args.a.dtype(), "weight [W] as a");
  check_statistic(rules, args.out, args.a, "out f32 (f64) [T,G]");
}

}  // namespace megatron::kernels
