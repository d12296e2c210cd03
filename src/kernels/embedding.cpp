#include "kernels/embedding.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const EmbeddingArgs& args) {
  const Rules rules("embedding", args);
  rules.indices(args.ids, 1, "ids i32 [T]");
  rules.floats(args.table, 2, "table [V,H] contiguous");
  rules.dense(args.out, {args.ids.size(0), args.table.size(1)}, args.table.dtype(),
              "out [T,H] of the table's type");
  rules.require(args.part || !args.keeps, "only a part of a table keeps other rows");
}

void check(const EmbeddingBackwardArgs& args) {
  const Tensor& table = args.dtable.out;
  const Rules rules("embedding_backward", args);
  rules.indices(args.ids, 1, "ids i32 [T]");
  rules.floats(args.dout, 2, "dout [T,H] contiguous");
  rules.require(args.dout.size(0) == args.ids.size(0), "ids and dout share T");
  rules.wide(table, 2, "dtable f32 (f64) [V,H]");
  rules.sum(args.dtable, {table.size(0), args.dout.size(1)}, accumulator(args.dout.dtype()),
            "dtable f32 (f64) [V,H]");
}

}  // namespace megatron::kernels
