#include "kernels/route.h"

#include "kernels/check_rules.h"
#include "kernels/router_loss.h"

namespace megatron::kernels {
namespace {

void check_form(const Rules& rules, const RouterForm& form, int64_t experts, int64_t k) {
  rules.require(k > 0 && k <= experts, "0 < k <= E");
  rules.require(form.groups > 0 && experts % form.groups == 0, "E divisible by groups");
  const int64_t size = experts / form.groups;
  rules.require(
      form.chosen_groups > 0 && form.chosen_groups <= form.groups && form.chosen_groups * size >= k,
      "chosen groups have k experts");
  rules.require(form.group_best > 0 && form.group_best <= size, "0 < group_best <= E / groups");
  rules.require(!form.softmax_first || form.score == RouterScore::softmax,
                "softmax_first of a softmax");
}

void check_chosen(const Rules& rules, const Tensor& experts, int64_t tokens) {
  rules.indices(experts, 2, "experts i32 [T,k]");
  rules.require(experts.size(0) == tokens, "experts and logits share T");
}

// Number of segments that the tokens are divided into.
int64_t check_segments(const Rules& rules, const Tensor& logits, const Tensor& counts) {
  rules.require(counts.defined() && counts.rank() == 2 && counts.size(0) > 0, "counts [S,E]");
  const int64_t segments = counts.size(0);
  rules.dense(counts, {segments, logits.size(1)}, logits.dtype(), "counts [S,E] as logits");
  rules.require(logits.size(0) % segments == 0, "T divisible by S");
  return segments;
}

}  // namespace

void check(const RouteArgs& args) {
  const Rules rules("route", args);
  check_logits(rules, args.logits);
  const int64_t tokens = args.logits.size(0), experts = args.logits.size(1);
  const DType type = args.logits.dtype();
  check_chosen(rules, args.experts, tokens);
  check_form(rules, args.form, experts, args.experts.size(1));
  rules.dense(args.weights, args.experts.shape(), type, "weights [T,k] as logits");
  rules.optional(args.bias, {experts}, type, "bias [E] as logits");
  rules.optional(args.selection, {tokens, experts}, type, "selection as logits");
}

void check(const RouteBackwardArgs& args) {
  const Rules rules("route_backward", args);
  check_logits(rules, args.logits);
  const DType type = args.logits.dtype();
  check_chosen(rules, args.experts, args.logits.size(0));
  check_form(rules, args.form, args.logits.size(1), args.experts.size(1));
  rules.dense(args.dweights, args.experts.shape(), type, "dweights [T,k] as logits");
  rules.dense(args.dlogits, args.logits.shape(), type, "dlogits as logits");
}

void check(const ExpertCountsArgs& args) {
  const Rules rules("expert_counts", args);
  rules.indices(args.experts, 2, "experts i32 [T,k]");
  rules.optional(args.rows, args.experts.shape(), DType::i32, "rows i32 [T,k]");
  const Tensor& counts = args.counts.out;
  rules.wide(counts, 1, "counts f32 or f64 [E] contiguous");
  rules.sum(args.counts, counts.shape(), counts.dtype(), "counts [E]");
}

void check(const ExpertSharesArgs& args) {
  const Rules rules("expert_shares", args);
  rules.wide(args.counts, 1, "counts f32 or f64 [E] contiguous");
  rules.dense(args.shares, args.counts.shape(), args.counts.dtype(), "shares as counts");
}

void check(const ExpertBiasArgs& args) {
  const Rules rules("expert_bias", args);
  rules.wide(args.bias, 1, "bias f32 or f64 [E] contiguous");
  rules.dense(args.counts, args.bias.shape(), args.bias.dtype(), "counts as bias");
}

void check(const RouterSumsArgs& args) {
  const Rules rules("router_sums", args);
  check_logits(rules, args.logits);
  rules.require(args.k > 0 && args.k <= args.logits.size(1), "0 < k <= E");
  const int64_t segments = check_segments(rules, args.logits, args.counts);
  const DType type = args.logits.dtype();
  rules.dense(args.sums, args.counts.shape(), type, "sums as counts");
  rules.dense(args.squares, {segments}, type, "squares [S] as logits");
  rules.dense(args.entropy, {segments}, type, "entropy [S] as logits");
  rules.optional(args.counted, {args.logits.size(0)}, DType::i32, "counted i32 [T]");
}

void check(const RouterLossBackwardArgs& args) {
  const Rules rules("router_loss_backward", args);
  check_logits(rules, args.logits);
  check_segments(rules, args.logits, args.counts);
  rules.scalar(args.weight, "weight 0-d f64");
  rules.optional(args.counted, {args.logits.size(0)}, DType::i32, "counted i32 [T]");
  rules.dense(args.dlogits, args.logits.shape(), args.logits.dtype(), "dlogits as logits");
}

}  // namespace megatron::kernels
