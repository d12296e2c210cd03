#include "kernels/cross_entropy.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

void check_tokens(const Rules& rules, const Tensor& labels, const Tensor& weights, int64_t rows,
                  DType type) {
  rules.dense(labels, {rows}, DType::i32, "labels i32 [T]");
  rules.dense(weights, {rows}, type, "weights f32 (f64) [T]");
}

}  // namespace

void check(const CrossEntropyArgs& args) {
  const Rules rules("cross_entropy", {{"logits", args.logits},
                                      {"labels", args.labels},
                                      {"weights", args.weights},
                                      {"loss", args.loss},
                                      {"dlogits", args.dlogits}});
  rules.require(args.logits.defined() && args.logits.rank() == 2 && args.logits.is_contiguous() &&
                    is_float_type(args.logits),
                "logits [T,V] contiguous");
  const int64_t rows = args.logits.size(0);
  const DType type = accumulator(args.logits.dtype());
  check_tokens(rules, args.labels, args.weights, rows, type);
  rules.dense(args.loss, {rows}, type, "loss f32 (f64) [T]");
  if (!args.dlogits.defined()) return;
  const DType given = args.dlogits.dtype();
  rules.require((type == DType::f64) == (given == DType::f64), "dlogits f64 for f64 logits only");
  rules.require(is_float_type(args.dlogits), "dlogits f32, bf16 or f16 (f64)");
  rules.dense(args.dlogits, args.logits.shape(), given, "dlogits [T,V] contiguous");
}

void check(const VocabularyStatsArgs& args) {
  const Rules rules("vocabulary_stats", {{"logits", args.logits},
                                         {"labels", args.labels},
                                         {"weights", args.weights},
                                         {"exponentials", args.exponentials},
                                         {"stats", args.stats}});
  rules.require(args.logits.defined() && args.logits.rank() == 2 && args.logits.is_contiguous() &&
                    is_wide(args.logits),
                "logits [T,V] f32 (f64), contiguous");
  const int64_t rows = args.logits.size(0);
  const DType type = args.logits.dtype();
  check_tokens(rules, args.labels, args.weights, rows, type);
  rules.dense(args.stats, {rows, 3}, type, "stats f32 (f64) [T,3]");
  if (args.exponentials.defined())
    rules.dense(args.exponentials, args.logits.shape(), type, "exponentials as logits");
}

void check(const VocabularyCrossEntropyArgs& args) {
  const Rules rules("vocabulary_cross_entropy", {{"stats", args.stats},
                                                 {"exponentials", args.exponentials},
                                                 {"labels", args.labels},
                                                 {"weights", args.weights},
                                                 {"loss", args.loss},
                                                 {"dlogits", args.dlogits}});
  rules.require(args.stats.defined() && args.stats.rank() == 3 && args.stats.size(2) == 3 &&
                    args.stats.is_contiguous() && is_wide(args.stats),
                "stats f32 (f64) [ranks,T,3]");
  rules.require(args.rank >= 0 && args.rank < args.stats.size(0), "rank is one of the ranks");
  const int64_t rows = args.stats.size(1);
  const DType type = args.stats.dtype();
  check_tokens(rules, args.labels, args.weights, rows, type);
  rules.dense(args.loss, {rows}, type, "loss f32 (f64) [T]");
  if (!args.dlogits.defined()) return;
  rules.require(args.exponentials.defined() && args.exponentials.rank() == 2 &&
                    args.exponentials.size(0) == rows && args.exponentials.dtype() == type &&
                    args.exponentials.is_contiguous(),
                "exponentials f32 (f64) [T,V], contiguous");
  rules.require(
      is_float_type(args.dlogits) && (type == DType::f64) == (args.dlogits.dtype() == DType::f64),
      "dlogits f32, bf16 or f16 (f64)");
  rules.dense(args.dlogits, args.exponentials.shape(), args.dlogits.dtype(),
              "dlogits [T,V] contiguous");
}

}  // namespace megatron::kernels
