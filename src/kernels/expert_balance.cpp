#include "kernels/expert_balance.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const SinkhornArgs& args) {
  const Rules rules("sinkhorn", args);
  check_logits(rules, args.logits);
  rules.dense(args.out, args.logits.shape(), args.logits.dtype(), "out as logits");
  rules.require(args.iterations > 0, "iterations > 0");
  if (args.counted.defined())
    rules.dense(args.counted, {args.logits.size(0)}, DType::i32, "counted i32 [T]");
}

void check(const ExpertThresholdsArgs& args) {
  const Rules rules("expert_thresholds", args);
  check_logits(rules, args.logits);
  const int64_t experts = args.logits.size(1);
  rules.require(args.logits.size(0) > 0, "T > 0");
  rules.require(args.k > 0 && args.k < experts, "0 < k < E");
  rules.require(args.form.groups == args.form.chosen_groups, "no groups");
  rules.dense(args.bias, {experts}, args.logits.dtype(), "bias [E] as logits");
  rules.dense(args.thresholds, {experts}, args.logits.dtype(), "thresholds [E] as logits");
  if (args.counted.defined())
    rules.dense(args.counted, {args.logits.size(0)}, DType::i32, "counted i32 [T]");
}

void check(const ThresholdBiasArgs& args) {
  const Rules rules("threshold_bias", args);
  rules.wide(args.bias, 1, "bias f32 or f64 [E] contiguous");
  rules.dense(args.sums, {args.bias.size(0) + 1}, args.bias.dtype(), "sums [E+1] as bias");
}

}  // namespace megatron::kernels
