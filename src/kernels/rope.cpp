#include "kernels/rope.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const RopeArgs& args) {
  const Rules rules("rope", args);
  rules.rows(args.x, 3, "x [T,N,D], last dim contiguous");
  rules.require(args.out.defined() && args.out.shape() == args.x.shape() &&
                    args.out.dtype() == args.x.dtype() && last_is_dense(args.out),
                "out as x");
  rules.require(args.cos.defined() && args.cos.rank() == 2 && args.cos.is_contiguous() &&
                    accumulator_of(args.cos, args.x.dtype()),
                "cos f32 (f64) [P,half]");
  rules.dense(args.sin, args.cos.shape(), args.cos.dtype(), "sin as cos");
  rules.require(2 * args.cos.size(1) <= args.x.size(2), "2 half <= D");
  rules.dense(args.positions, {args.x.size(0)}, DType::i32, "positions i32 [T]");
}

}  // namespace megatron::kernels
