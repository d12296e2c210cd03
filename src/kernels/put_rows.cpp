#include "kernels/put_rows.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const PutRowsArgs& args) {
  const Rules rules("put_rows", {{"x", args.x}, {"rows", args.rows}, {"out", args.out}});
  rules.require(
      args.x.defined() && args.x.rank() == 2 && is_float_type(args.x) && last_is_dense(args.x),
      "x [T,W], last dim contiguous");
  rules.dense(args.rows, {args.x.size(0)}, DType::i32, "rows i32 [T]");
  rules.require(args.out.defined() && args.out.rank() == 2 && args.out.is_contiguous() &&
                    args.out.size(1) == args.x.size(1) && args.out.dtype() == args.x.dtype(),
                "out [R,W] contiguous, as x");
}

}  // namespace megatron::kernels
