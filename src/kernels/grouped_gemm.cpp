#include "kernels/grouped_gemm.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const GroupedGemmArgs& args) {
  const Rules rules("grouped_gemm", args);
  rules.floats(args.a, 2, "a [R,K] of a floating type");
  rules.require(args.b.defined() && args.b.rank() == 3, "b of rank 3");
  const int64_t depth = args.a.size(1), groups = args.b.size(0);
  const int64_t columns = args.b.size(args.transpose_b ? 1 : 2);
  const DType type = args.a.dtype();
  rules.dense(args.b,
              args.transpose_b ? Shape{groups, columns, depth} : Shape{groups, depth, columns},
              type, "b [G,K,N] (transpose_b: [G,N,K]) as a");
  rules.optional(args.bias, {groups, columns}, type, "bias [G,N] as a");
  rules.dense(args.out, {args.a.size(0), columns}, type, "out [R,N] as a");
  rules.dense(args.offsets, {groups + 1}, DType::i32, "offsets i32 [G+1]");
  rules.optional(args.a_scale, {}, DType::f32, "a_scale f32 0-d");
  rules.optional(args.b_scale, {}, DType::f32, "b_scale f32 0-d");
}

void check(const GroupedGradientArgs& args) {
  const Rules rules("grouped_gradient", args);
  rules.floats(args.dy, 2, "dy [R,M] of a floating type");
  rules.require(args.x.defined() && args.x.rank() == 2, "x [R,N]");
  rules.dense(args.x, {args.dy.size(0), args.x.size(1)}, args.dy.dtype(), "x [R,N] as dy");
  rules.require(args.dw.out.defined() && args.dw.out.rank() == 3, "dw [G,M,N]");
  const int64_t groups = args.dw.out.size(0);
  const DType sums = accumulator(args.dy.dtype());
  rules.sum(args.dw, {groups, args.dy.size(1), args.x.size(1)}, sums, "dw f32 (f64) [G,M,N]");
  rules.optional(args.dbias, {groups, args.dy.size(1)}, sums, "dbias f32 (f64) [G,M]");
  rules.dense(args.offsets, {groups + 1}, DType::i32, "offsets i32 [G+1]");
  rules.optional(args.dy_scale, {}, DType::f32, "dy_scale f32 0-d");
  rules.optional(args.x_scale, {}, DType::f32, "x_scale f32 0-d");
}

}  // namespace megatron::kernels
