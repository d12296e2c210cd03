#include "kernels/put_rows.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const PutRowsArgs& args) {
  const Rules rules("put_rows", args);
  rules.require(
      args.x.defined() && args.x.rank() == 3 && is_float_type(args.x) && last_is_dense(args.x),
      "x [T,K,D], last dim contiguous");
  rules.dense(args.rows, {args.x.size(0)}, DType::i32, "rows i32 [T]");
  rules.require(args.out.defined() && args.out.rank() == 4 && last_is_dense(args.out) &&
                    args.out.size(2) == args.x.size(1) && args.out.size(3) == args.x.size(2) &&
                    args.out.dtype() == args.x.dtype(),
                "out [pages,P,K,D] of the type of x, last dim contiguous");
}

}  // namespace megatron::kernels
