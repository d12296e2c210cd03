#include "kernels/embedding.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const EmbeddingArgs& args) {
  const Rules rules("embedding", args);
  rules.contiguous(args.ids, 1, is_i32, "ids i32 [T]");
  rules.contiguous(args.table, 2, is_float_type, "table [V,H] contiguous");
  rules.dense(args.out, {args.ids.size(0), args.table.size(1)}, args.table.dtype(),
              "out [T,H] of the table's type");
}

void check(const EmbeddingBackwardArgs& args) {
  const Tensor& table = args.dtable.out;
  const Rules rules("embedding_backward", args);
  rules.contiguous(args.ids, 1, is_i32, "ids i32 [T]");
  rules.contiguous(args.dout, 2, is_float_type, "dout [T,H] contiguous");
  rules.require(args.dout.size(0) == args.ids.size(0), "dout [T,H] contiguous");
  rules.require(table.defined() && table.rank() == 2 && table.is_contiguous() &&
                    table.size(1) == args.dout.size(1) && accumulator_of(table, args.dout.dtype()),
                "dtable f32 (f64) [V,H]");
  rules.require(args.dtable.beta == 0 || args.dtable.beta == 1, "beta is 0 or 1");
}

}  // namespace megatron::kernels
