#include "kernels/causal_conv.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

// x [B,T,C] and the weights.
template <class Args>
void check_inputs(const Rules& rules, const Args& args) {
  rules.rows(args.x, 3, "x [B,T,C] of a floating type, last dim contiguous");
  const DType type = args.x.dtype();
  const int64_t channels = args.x.size(2);
  rules.floats(args.weight, 2, "weight [C,K]");
  rules.require(args.weight.size(0) == channels && args.weight.dtype() == type,
                "weight [C,K] of the type of x");
  const int64_t width = args.weight.size(1);
  rules.require(width >= 1 && width <= kMaxConvolution, "K from 1 to kMaxConvolution");
  rules.optional(args.bias, {channels}, type, "bias [C] of the type of x");
}

void check_like_x(const Rules& rules, const Tensor& t, const Tensor& x, const char* rule) {
  rules.rows(t, 3, rule);
  rules.require(t.shape() == x.shape() && t.dtype() == x.dtype(), rule);
}

}  // namespace

void check(const CausalConvArgs& args) {
  const Rules rules("causal_conv", args);
  check_inputs(rules, args);
  rules.optional(args.starts, {args.x.size(0), args.x.size(1)}, DType::i32, "starts i32 [B,T]");
  check_like_x(rules, args.out, args.x, "out as x");
}

void check(const CausalConvBackwardArgs& args) {
  const Rules rules("causal_conv_backward", args);
  check_inputs(rules, args);
  rules.optional(args.starts, {args.x.size(0), args.x.size(1)}, DType::i32, "starts i32 [B,T]");
  check_like_x(rules, args.dout, args.x, "dout as x");
  check_like_x(rules, args.dx, args.x, "dx as x");
  const DType sums = accumulator(args.x.dtype());
  rules.optional(args.dweight, args.weight.shape(), sums, "dweight f32 (f64) [C,K]");
  rules.optional(args.dbias, {args.x.size(2)}, sums, "dbias f32 (f64) [C]");
}

void check(const CausalConvContinuedArgs& args) {
  const Rules rules("causal_conv_continued", args);
  check_inputs(rules, args);
  rules.dense(args.positions, {args.x.size(0), args.x.size(1)}, DType::i32, "positions i32 [B,S]");
  rules.indices(args.block_table, 2, "block_table i32 [B,blocks]");
  rules.require(args.block_table.size(0) == args.x.size(0), "block_table i32 [B,blocks]");
  rules.require(args.block_size > 0, "block_size > 0");
  rules.floats(args.tails, 3, "tails [slots,K-1,C]");
  rules.require(args.tails.size(1) == args.weight.size(1) - 1 &&
                    args.tails.size(2) == args.x.size(2) && args.tails.dtype() == args.x.dtype(),
                "tails [slots,K-1,C] of the type of x");
  check_like_x(rules, args.out, args.x, "out as x");
}

}  // namespace megatron::kernels
