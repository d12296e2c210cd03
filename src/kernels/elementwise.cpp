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
  rules.require(
      args.x.defined() && args.x.rank() == 2 && args.x.is_contiguous() && is_float_type(args.x),
      "x [T,N] contiguous");
  rules.dense(args.out.out, {args.x.size(1)}, accumulator(args.x.dtype()), "out f32 (f64) [N]");
  rules.require(args.out.beta == 0 || args.out.beta == 1, "beta is 0 or 1");
}

void check(const SumArgs& args) {
  const Rules rules("sum", args);
  const auto row = [](const Tensor& t) {
    return t.rank() == 1 && t.is_contiguous() &&
           (t.dtype() == DType::f32 || t.dtype() == DType::f64);
  };
  rules.require(args.x.defined() && row(args.x), "x [T] f32 or f64");
  rules.require(
      !args.weights.defined() || (row(args.weights) && args.weights.size(0) == args.x.size(0)),
      "weights [T] f32 or f64");
  rules.scalar(args.out, "out 0-d f64");
}

void check(const SumOfSquaresArgs& args) {
  const Rules rules("sum_of_squares", args);
  rules.require(args.x.defined() && args.x.is_contiguous() &&
                    (args.x.dtype() == DType::f32 || args.x.dtype() == DType::f64),
                "x contiguous f32 or f64");
  rules.dense(args.partial, {ceil_div(args.x.elements(), kNormBlock)}, DType::f64,
              "partial f64 [ceil(n / 16384)]");
}

}  // namespace megatron::kernels
