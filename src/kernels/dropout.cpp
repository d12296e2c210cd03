#include "kernels/dropout.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const DropoutArgs& args) {
  const Rules rules("dropout", args);
  rules.require(
      args.x.defined() && args.x.rank() == 2 && args.x.is_contiguous() && is_float_type(args.x),
      "x [B*T,C] contiguous");
  rules.dense(args.out, args.x.shape(), args.x.dtype(), "out as x");
  if (args.mask.p == 0) return;
  rules.require(args.mask.sample_ids.defined() && args.mask.sample_ids.rank() == 1,
                "sample_ids i64 [B]");
  const int64_t batch = args.mask.sample_ids.size(0), first = args.mask.first_row;
  check_mask(rules, args.mask, batch);
  if (args.mask.length != 0) {
    rules.require(
        first >= 0 && args.mask.length > 0 && first + args.x.size(0) <= batch * args.mask.length,
        "rows [first_row, first_row + rows) of B * length");
    return;
  }
  rules.require(first == 0, "a first row with the length only");
  rules.require(args.x.size(0) == 0 || (batch > 0 && args.x.size(0) % batch == 0),
                "rows are a multiple of the samples");
}

}  // namespace megatron::kernels
