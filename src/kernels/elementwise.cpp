#include "kernels/elementwise.h"

#include "base/divide.h"
#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const AddArgs& args) {
  const Rules rules("add", args);
  for (const Tensor* t : {&args.a, &args.b, &args.out})
    rules.require(t->defined() && is_floating(t->dtype()), "a, b and out floating");
  const bool row = args.a.rank() == 2 && args.b.rank() == 1;
  rules.dense(args.a, args.out.shape(), args.a.dtype(), "one shape, contiguous");
  rules.dense(args.out, args.a.shape(), args.out.dtype(), "one shape, contiguous");
  rules.dense(args.b, row ? Shape{args.a.size(1)} : args.a.shape(), args.b.dtype(),
              "b of the shape of a, or one row of it, contiguous");
}

void check(const CopyArgs& args) {
  const Rules rules("copy", args);
  rules.require(args.x.defined() && args.out.defined() && args.x.shape() == args.out.shape(),
                "shapes alike");
  rules.require(args.x.dtype() == args.out.dtype() ||
                    (is_floating(args.x.dtype()) && is_floating(args.out.dtype())),
                "floating types, or one integer type");
}

void check(const FillArgs& args) {
  const Rules rules("fill", args);
  rules.require(args.out.defined() && args.out.is_contiguous(), "out contiguous");
}

void check(const ColumnSumArgs& args) {
  const Rules rules("column_sum", args);
  rules.floats(args.x, 2, "x [T,N] contiguous");
  rules.sum(args.out, {args.x.size(1)}, accumulator(args.x.dtype()), "out f32 (f64) [N]");
}

void check(const SumArgs& args) {
  const Rules rules("sum", args);
  rules.wide(args.x, 1, "x [T] f32 or f64");
  if (args.weights.defined()) {
    rules.wide(args.weights, 1, "weights [T] f32 or f64");
    rules.require(args.weights.size(0) == args.x.size(0), "weights and x share T");
  }
  rules.scalar(args.out, "out 0-d f64");
}

void check(const SumOfSquaresArgs& args) {
  const Rules rules("sum_of_squares", args);
  rules.require(args.x.defined() && args.x.is_contiguous() && is_wide(args.x),
                "x contiguous f32 or f64");
  rules.dense(args.partial, {ceil_div(args.x.elements(), kNormBlock)}, DType::f64,
              "partial f64 [ceil(n / 16384)]");
}

}  // namespace megatron::kernels
