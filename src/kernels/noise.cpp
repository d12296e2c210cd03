#include "kernels/noise.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const JitterArgs& args) {
  const Rules rules("jitter", args);
  rules.floats(args.x, 2, "x [B*T,C] contiguous");
  rules.dense(args.out, args.x.shape(), args.x.dtype(), "out as x");
  check_row_tokens(rules, args.rows.tokens, args.x.size(0));
}

void check(const RandomLogitsArgs& args) {
  const Rules rules("random_logits", args);
  rules.wide(args.out, 2, "out f32 or f64 [B*T,E] contiguous");
  rules.optional(args.x, args.out.shape(), args.out.dtype(), "x as out");
  if (args.of != RandomLogitsArgs::Of::all)
    check_row_tokens(rules, args.rows.tokens, args.out.size(0));
}

}  // namespace megatron::kernels
