#include "kernels/clip.h"

#include "kernels/row_rules.h"

namespace megatron::kernels {

void check(const ClipArgs& args) {
  const Rules rules("clip", {{"x", args.x}, {"out", args.out}});
  rules.require(args.limit > 0, "limit above 0");
  check_rows(rules, args.x, "x [T,N] of a floating type, last dim contiguous");
  check_rows_as(rules, args.out, args.x, "out as x");
}

void check(const ClipBackwardArgs& args) {
  const Rules rules("clip_backward", {{"x", args.x}, {"dout", args.dout}, {"dx", args.dx}});
  rules.require(args.limit > 0, "limit above 0");
  check_rows(rules, args.x, "x [T,N] of a floating type, last dim contiguous");
  check_rows_as(rules, args.dout, args.x, "dout as x");
  check_rows_as(rules, args.dx, args.x, "dx as x");
}

}  // namespace megatron::kernels
