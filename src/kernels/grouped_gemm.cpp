#include "kernels/grouped_gemm.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

void check_offsets(const Rules& rules, const Tensor& offsets, int64_t groups) {
  rules.dense(offsets, {groups + 1}, DType::i32, "offsets i32 [G+1]");
}

}  // namespace

void check(const GroupedGemmArgs& args) {
  const Rules rules("grouped_gemm", args);
  rules.require(
      args.a.defined() && args.a.rank() == 2 && is_float_type(args.a) && args.a.is_contiguous(),
      "a [R,K] of a floating type");
  rules.require(args.b.defined() && args.b.rank() == 3, "b of rank 3");
  const int64_t depth = args.a.size(1), groups = args.b.size(0);
  const int64_t columns = args.b.size(args.transpose_b ? 1 : 2);
  const DType type = args.a.dtype();
  rules.dense(args.b,
              args.transpose_b ? Shape{groups, columns, depth} : Shape{groups, depth, columns},
              type, "b [G,K,N] (transpose_b: [G,N,K]) as a");
  if (args.bias.defined()) rules.dense(args.bias, {groups, columns}, type, "bias [G,N] as a");
  rules.dense(args.out, {args.a.size(0), columns}, type, "out [R,N] as a");
  check_offsets(rules, args.offsets, groups);
}

void check(const GroupedGradientArgs& args) {
  const Rules rules("grouped_gradient", args);
  rules.require(
      args.dy.defined() && args.dy.rank() == 2 && is_float_type(args.dy) && args.dy.is_contiguous(),
      "dy [R,M] of a floating type");
  rules.require(args.x.defined() && args.x.rank() == 2, "x [R,N]");
  rules.dense(args.x, {args.dy.size(0), args.x.size(1)}, args.dy.dtype(), "x [R,N] as dy");
  rules.require(args.dw.out.defined() && args.dw.out.rank() == 3, "dw [G,M,N]");
  const int64_t groups = args.dw.out.size(0);
  const DType sums = accumulator(args.dy.dtype());
  rules.dense(args.dw.out, {groups, args.dy.size(1), args.x.size(1)}, sums, "dw f32 (f64) [G,M,N]");
  if (args.dbias.out.defined())
    rules.dense(args.dbias.out, {groups, args.dy.size(1)}, sums, "dbias f32 (f64) [G,M]");
  for (const Accumulate* a : {&args.dw, &args.dbias})
    rules.require(a->beta == 0 || a->beta == 1, "beta is 0 or 1");
  check_offsets(rules, args.offsets, groups);
}

}  // namespace megatron::kernels
