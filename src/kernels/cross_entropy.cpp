#include "kernels/cross_entropy.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

// True if t holds rows of logits, or of results of the same shape.
bool has_rows(const Tensor& t) {
  if (!t.defined() || t.rank() != 2) return false;
  return t.is_contiguous() ||
         (!t.device().is_host() && last_is_dense(t) && t.stride(0) >= t.size(1));
}
bool has_rows(const Tensor& t, const Shape& shape) { return has_rows(t) && t.shape() == shape; }

void check_tokens(const Rules& rules, const Tensor& labels, const Tensor& weights, int64_t rows,
                  DType type) {
  rules.dense(labels, {rows}, DType::i32, "labels i32 [T]");
  rules.dense(weights, {rows}, type, "weights f32 (f64) [T]");
}

}  // namespace

void check(const CrossEntropyArgs& args) {
  const Rules rules("cross_entropy", args);
  rules.require(has_rows(args.logits) && is_float_type(args.logits), "logits [T,V]");
  const int64_t rows = args.logits.size(0);
  const DType type = accumulator(args.logits.dtype());
  check_tokens(rules, args.labels, args.weights, rows, type);
  rules.dense(args.loss, {rows}, type, "loss f32 (f64) [T]");
  if (args.hits.defined()) rules.dense(args.hits, {rows}, type, "hits f32 (f64) [T]");
  if (!args.dlogits.defined()) return;
  const DType given = args.dlogits.dtype();
  rules.require((type == DType::f64) == (given == DType::f64), "dlogits f64 for f64 logits only");
  rules.require(is_float_type(args.dlogits), "dlogits f32, bf16 or f16 (f64)");
  rules.require(has_rows(args.dlogits, args.logits.shape()), "dlogits [T,V]");
}

void check(const VocabularyStatsArgs& args) {
  const Rules rules("vocabulary_stats", args);
  rules.require(has_rows(args.logits) && is_wide(args.logits), "logits [T,V] f32 (f64)");
  const int64_t rows = args.logits.size(0);
  const DType type = args.logits.dtype();
  check_tokens(rules, args.labels, args.weights, rows, type);
  rules.dense(args.stats, {rows, 3}, type, "stats f32 (f64) [T,3]");
  if (args.exponentials.defined())
    rules.require(
        has_rows(args.exponentials, args.logits.shape()) && args.exponentials.dtype() == type,
        "exponentials as logits");
}

void check(const VocabularyCrossEntropyArgs& args) {
  const Rules rules("vocabulary_cross_entropy", args);
  rules.require(args.stats.defined() && args.stats.rank() == 3 && args.stats.size(2) == 3 &&
                    args.stats.is_contiguous() && is_wide(args.stats),
                "stats f32 (f64) [ranks,T,3]");
  rules.require(args.rank >= 0 && args.rank < args.stats.size(0), "rank is one of the ranks");
  const int64_t rows = args.stats.size(1);
  const DType type = args.stats.dtype();
  check_tokens(rules, args.labels, args.weights, rows, type);
  rules.dense(args.loss, {rows}, type, "loss f32 (f64) [T]");
  if (args.hits.defined()) rules.dense(args.hits, {rows}, type, "hits f32 (f64) [T]");
  if (!args.dlogits.defined()) return;
  rules.require(has_rows(args.exponentials) && args.exponentials.size(0) == rows &&
                    args.exponentials.dtype() == type,
                "exponentials f32 (f64) [T,V]");
  rules.require(
      is_float_type(args.dlogits) && (type == DType::f64) == (args.dlogits.dtype() == DType::f64),
      "dlogits f32, bf16 or f16 (f64)");
  rules.require(has_rows(args.dlogits, args.exponentials.shape()), "dlogits [T,V]");
}

}  // namespace megatron::kernels
