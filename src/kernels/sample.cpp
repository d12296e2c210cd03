#include "kernels/sample.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const SampleArgs& args) {
  const Rules rules("sample", args);
  rules.rows(args.logits, 2, "logits [R,V], last dim contiguous");
  rules.require(args.logits.size(1) > 0 && args.logits.size(1) <= kMaxSampled, "0 < V <= 2^22");
  rules.dense(args.rules, {args.logits.size(0), kSampleRules}, DType::f64, "rules f64 [R,5]");
  rules.dense(args.ids, {args.logits.size(0)}, DType::i32, "ids i32 [R]");
}

}  // namespace megatron::kernels
