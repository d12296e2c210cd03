#include "kernels/put_rows.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const PutRowsArgs& args) {
  const Rules rules("put_rows", args);
  const auto rows = [&](const Tensor& t, int rank, const char* rule) {
    const bool moves = t.defined() && (is_float_type(t) || t.dtype() == DType::i32);
    rules.require(moves && t.rank() == rank && last_is_dense(t), rule);
  };
  rows(args.x, 3, "x [T,K,D] of a floating type or i32, last dim contiguous");
  rules.dense(args.rows, {args.x.size(0)}, DType::i32, "rows i32 [T]");
  rows(args.out, 4, "out [pages,P,K,D], last dim contiguous");
  rules.require(args.out.size(2) == args.x.size(1) && args.out.size(3) == args.x.size(2) &&
                    args.out.dtype() == args.x.dtype(),
                "out [pages,P,K,D] of the type of x");
}

}  // namespace megatron::kernels
