#include "kernels/expert_rows.h"

#include <algorithm>

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const ExpertRowsArgs& args) {
  const Rules rules("expert_rows", args);
  rules.indices(args.experts, 2, "experts i32 [T,k]");
  const Shape& shape = args.experts.shape();
  rules.dense(args.rows, shape, DType::i32, "rows i32 [T,k]");
  rules.indices(args.offsets, 1, "offsets i32 [G+1]");
  rules.require(args.offsets.size(0) > 0, "offsets i32 [G+1]");
  rules.indices(args.slots, 1, "slots i32 [R]");
  rules.require(args.first >= 0 && args.capacity >= 0, "first and capacity not negative");
  rules.require(args.segment >= 0 && (args.segment == 0 || shape[0] % args.segment == 0),
                "T divisible by segment");
  rules.require(args.capacity > 0 || !args.padded, "padded with a capacity");
  rules.require(args.factor == 0 || (args.factor > 0 && args.capacity > 0 && args.all_experts > 0),
                "a factor with a capacity and all_experts");
  rules.require(args.kept != KeptRows::largest || args.weights.defined(), "weights of the largest");
  if (args.weights.defined()) {
    rules.require(is_wide(args.weights), "weights f32 or f64");
    rules.dense(args.weights, shape, args.weights.dtype(), "weights [T,k]");
  }
}

void check(const TakeRowsArgs& args) {
  const Rules rules("take_rows", args);
  rules.floats(args.x, 2, "x [N,H] of a floating type");
  rules.require(args.share > 0, "share > 0");
  rules.indices(args.index, 1, "index i32 [R]");
  rules.dense(args.out, {args.index.size(0), args.x.size(1)}, args.x.dtype(), "out [R,H] as x");
}

void check(const SumRowsArgs& args) {
  const Rules rules("sum_rows", args);
  if (!args.index.defined()) {
    rules.rows(args.x, 3, "x [T,k,H] of a floating type");
    rules.dense(args.out, {args.x.size(0), args.x.size(2)}, args.x.dtype(), "out [T,H] as x");
    return;
  }
  rules.floats(args.x, 2, "x [R,H] of a floating type");
  rules.indices(args.index, 2, "index i32 [T,k]");
  rules.dense(args.out, {args.index.size(0), args.x.size(1)}, args.x.dtype(), "out [T,H] as x");
}

void check(const ScaleRowsArgs& args) {
  const Rules rules("scale_rows", args);
  rules.floats(args.x, 2, "x [R,H] of a floating type");
  rules.dense(args.factors, {args.x.size(0)}, accumulator(args.x.dtype()), "factors f32 (f64) [R]");
  rules.dense(args.out, args.x.shape(), args.x.dtype(), "out as x");
}

void check(const ScaleRowsBackwardArgs& args) {
  const Rules rules("scale_rows_backward", args);
  rules.floats(args.x, 2, "x [R,H] of a floating type");
  const DType sums = accumulator(args.x.dtype());
  rules.dense(args.factors, {args.x.size(0)}, sums, "factors f32 (f64) [R]");
  rules.dense(args.dout, args.x.shape(), args.x.dtype(), "dout as x");
  rules.dense(args.dx, args.x.shape(), args.x.dtype(), "dx as x");
  rules.dense(args.dfactors, {args.x.size(0)}, sums, "dfactors f32 (f64) [R]");
}

}  // namespace megatron::kernels
