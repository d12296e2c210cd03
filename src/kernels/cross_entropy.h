// Softmax cross entropy over rows of logits, with its gradient in the same pass. Rows of logits,
// exponentials and dlogits are dense; on CUDA their row stride is free, elsewhere they are
// contiguous. Memory between rows is neither read nor written.
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// loss[t] = log sum_v exp(logits[t,v]) - logits[t,labels[t]], f32 (f64 for f64) [T]. dlogits[t,v] =
// weights[t] * (softmax(logits[t])[v] - [v == labels[t]]) if dlogits is defined; it may be logits.
// logits [T,V] (f64, f32, bf16, f16), dlogits any of f32/bf16/f16 (f64 for f64); labels i32 [T];
// weights [T] as loss. If weights[t] is 0, loss[t] and its row of dlogits are 0, and the label is
// not read (it may be -100). hits [T] as loss, if defined: 1 where no logit is above the label's
// (the label is the argmax of its row, or tied with it), else 0; 0 where the weight is.
struct CrossEntropyArgs {
  Tensor logits, labels, weights;
  Tensor loss, dlogits, hits;
};

// First step of the same if ranks divide the vocabulary. This rank has columns [first, first + V)
// of the logits; V may be 0. Each rank computes the statistics of its columns that the others need,
// stats [T,3] f32 (f64): the largest logit m (-infinity if V is 0), the sum of exp(logit - m), and
// the label's logit (-infinity if the label is on another rank). exponentials[t,v] =
// exp(logits[t,v] - m) if defined; it may be logits. logits, exponentials [T,V] f32 (f64); labels,
// weights as above. Rows of weight 0 are skipped: stats -infinity, 0, -infinity, exponentials 0.
struct VocabularyStatsArgs {
  Tensor logits, labels, weights;
  int64_t first = 0;
  Tensor exponentials, stats;
};

// Second step: loss, dlogits and hits as above, over the whole vocabulary, from stats [ranks,T,3]
// of all ranks, of which this one is `rank`, and this rank's exponentials. If dlogits is undefined,
// exponentials are not read; else it is [T,V], any of f32/bf16/f16 (f64 for f64), and may be
// exponentials. Sums over ranks are in their order. A label that no rank has gives loss +infinity.
struct VocabularyCrossEntropyArgs {
  Tensor stats, exponentials, labels, weights;
  int64_t first = 0, rank = 0;
  Tensor loss, dlogits, hits;
};

void check(const CrossEntropyArgs& args);
void check(const VocabularyStatsArgs& args);
void check(const VocabularyCrossEntropyArgs& args);

template <class F>
void visit(CrossEntropyArgs& a, F&& f) {
  f("logits", Access::read, a.logits);
  f("labels", Access::read, a.labels);
  f("weights", Access::read, a.weights);
  f("loss", Access::write, a.loss);
  f("dlogits", Access::write, a.dlogits);
  f("hits", Access::write, a.hits);
}
template <class F>
void visit(VocabularyStatsArgs& a, F&& f) {
  f("logits", Access::read, a.logits);
  f("labels", Access::read, a.labels);
  f("weights", Access::read, a.weights);
  f("exponentials", Access::write, a.exponentials);
  f("stats", Access::write, a.stats);
}
template <class F>
void visit(VocabularyCrossEntropyArgs& a, F&& f) {
  f("stats", Access::read, a.stats);
  f("exponentials", Access::read, a.exponentials);
  f("labels", Access::read, a.labels);
  f("weights", Access::read, a.weights);
  f("loss", Access::write, a.loss);
  f("dlogits", Access::write, a.dlogits);
  f("hits", Access::write, a.hits);
}

}  // namespace megatron::kernels
