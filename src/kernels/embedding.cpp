#include "kernels/embedding.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const EmbeddingArgs& args) {
  const Rules rules("embedding", args);
  rules.require(args.ids.defined() && args.ids.rank() == 1 && args.ids.dtype() == DType::i32 &&
                    args.ids.is_contiguous(),
                "ids i32 [T]");
  rules.require(args.table.defined() && args.table.rank() == 2 && args.table.is_contiguous() &&
                    is_float_type(args.table),
                "table [V,H] contiguous");
  rules.dense(args.out, {args.ids.size(0), args.table.size(1)}, args.table.dtype(),
              "out [T,H] of the table's type");
}

void check(const EmbeddingBackwardArgs& args) {
  const Tensor& table = args.dtable.out;
  const Rules rules("embedding_backward", args);
  rules.require(args.ids.defined() && args.ids.rank() == 1 && args.ids.dtype() == DType::i32 &&
                    args.ids.is_contiguous(),
                "ids i32 [T]");
  rules.require(args.dout.defined() && args.dout.rank() == 2 && args.dout.is_contiguous() &&
                    is_float_type(args.dout) && args.dout.size(0) == args.ids.size(0),
                "dout [T,H] contiguous");
  rules.require(table.defined() && table.rank() == 2 && table.is_contiguous() &&
                    table.size(1) == args.dout.size(1) && accumulator_of(table, args.dout.dtype()),
                "dtable f32 (f64) [V,H]");
  rules.require(args.dtable.beta == 0 || args.dtable.beta == 1, "beta is 0 or 1");
}

}  // namespace megatron::kernels
