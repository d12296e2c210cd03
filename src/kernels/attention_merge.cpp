#include "kernels/attention_merge.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const AttentionMergeArgs& args) {
  const Rules rules("attention_merge", args);
  rules.require(args.out.defined() && args.out.rank() == 4 && is_wide(args.out),
                "out f32 or f64 [B,T,N,D]");
  const Shape& shape = args.out.shape();
  rules.dense(args.out, shape, args.out.dtype(), "out contiguous");
  rules.require(args.part.defined() && is_float_type(args.part) &&
                    accumulator_of(args.out, args.part.dtype()),
                "part of a type that is summed in out's");
  rules.dense(args.part, shape, args.part.dtype(), "part as out");
  const Shape rows{shape[0], shape[2], shape[1]};
  for (const Tensor* lse : {&args.lse, &args.part_lse, &args.merged_lse})
    rules.dense(*lse, rows, args.out.dtype(), "lse, part_lse and merged_lse [B,N,T]");
  rules.require(args.merged_lse.address() == nullptr ||
                    (args.merged_lse.address() != args.lse.address() &&
                     args.merged_lse.address() != args.part_lse.address()),
                "merged_lse apart from lse and part_lse");
}

}  // namespace megatron::kernels
