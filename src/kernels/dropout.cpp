#include "kernels/dropout.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const DropoutArgs& args) {
  const Rules rules("dropout", args);
  rules.floats(args.x, 2, "x [B*T,C] contiguous");
  rules.dense(args.out, args.x.shape(), args.x.dtype(), "out as x");
  rules.require(args.mask.p >= 0 && args.mask.p < 1, "dropout p in [0, 1)");
  rules.require(args.mask.first_channel >= 0 && args.mask.first_channel % 4 == 0,
                "first_channel a multiple of 4");
  if (args.mask.p > 0) check_row_tokens(rules, args.mask.rows, args.x.size(0));
}

}  // namespace megatron::kernels
