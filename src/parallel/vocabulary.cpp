#include "parallel/vocabulary.h"

#include <algorithm>

#include "base/divide.h"
#include "base/error.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/soft_cap.h"
#include "parallel/chunk_losses.h"
#include "parallel/collectives.h"
#include "parallel/linear.h"

namespace megatron::parallel {
namespace {

using PendingDx = std::shared_ptr<PendingSum>;

void loss_dgrad(Backward& backward) {
  PendingSum& dx = *backward.attributes<PendingDx>();
  if (dx.result.defined()) {
    dx.wait(backward.stream());
    backward.set(0, dx.result);
  }
}

// Loss of one rank's rows of the vocabulary, one chunk of tokens at a time.
class DividedLoss {
 public:
  DividedLoss(Tape& tape, const Var& x, const Weight& weight, int64_t first, const Tensor& labels,
              const Tensor& weights, const TensorParallel& tp, double soft_cap,
              const ops::LowRank& adapter, const Weight& bias, const Tensor& hits)
      : tape_(tape),
        weight_(weight),
        bias_(bias),
        products_(weight, bias, tape),
        adapter_(adapter),
        first_(first),
        soft_cap_(soft_cap),
        labels_T_(labels),
        weights_T_(weights),
        hits_T_(hits),
        tp_(tp),
        tokens_(labels.elements()),
        type_(x.value.dtype()),
        sums_(kernels::accumulator(type_)),
        needs_dx_(tape.recording() && x.needs_gradient()) {
    MG_ASSERT(x.value.size(0) == tp.tokens(tokens_).size);
    x_TH_ = tp.divides_tokens() ? gathered_rows(tape, x.value, *tp.group, "vocabulary_loss, x",
                                                MemoryClass::communication)
                                : x.value;
    loss_T_ = tape.empty({tokens_}, sums_, "loss");
    if (needs_dx_)
      dx_TH_ =
          Tensor::empty(tape.runtime().arena(partial_memory(tp)), x_TH_.shape(), type_, "loss.dx");
  }

  // Returns the sum of dx over the ranks in flight.
  PendingDx run() {
    const int64_t columns = weight_.value().size(0);
    const int64_t share =
        std::max<int64_t>(1, largest_vocabulary_share(first_, columns, tp_.rank()));
    const int64_t rows = std::min(ops::loss_chunk_rows(share, tape_.stream().target()),
                                  std::max<int64_t>(tokens_, 1));
    const bool capped = soft_cap_ > 0, dense = capped || bias_;
    const auto chunk = [&](DType type, const char* label) {
      return ops::loss_chunk(tape_.stream(), rows, columns, type, dense, label);
    };
    logits_CV_ = chunk(sums_, "loss.logits");
    dlogits_CV_ = logits_CV_;
    if (tape_.recording() && (type_ != sums_ || capped)) dlogits_CV_ = chunk(type_, "loss.dlogits");
    if (tape_.recording() && capped) exponentials_CV_ = chunk(sums_, "loss.exponentials");
    const auto pending = std::make_shared<PendingSum>();
    adapted_TH_ = ops::low_rank_input(adapter_, tape_, x_TH_);
    ops::LowRankInputGradient adapted_dx(adapter_, tape_, dx_TH_);
    for (int64_t begin = 0; begin < tokens_; begin += rows) {
      const int64_t count = std::min(rows, tokens_ - begin);
      const std::vector<Tensor> inner = form_loss(begin, count);
      if (!tape_.recording()) continue;
      const Tensor dlogits = dlogits_CV_.slice(0, 0, count);
      const Tensor dx = needs_dx_ ? dx_TH_.slice(0, begin, count) : Tensor();
      if (needs_dx_) products_.input_gradient(dlogits, dx);
      ops::add_low_rank_gradients(adapter_, tape_, inner, dlogits,
                                  adapted_TH_.slice(0, begin, count),
                                  needs_dx_ ? adapted_dx.sum().slice(0, begin, count) : Tensor());
      if (needs_dx_ && begin + count == tokens_) {
        adapted_dx.finish();
        pending->begin(tape_, dx_TH_, tp_, "vocabulary_loss, gradient");
      }
      products_.weight_gradients(dlogits, x_TH_.slice(0, begin, count));
    }
    return pending;
  }

  const Tensor& loss() const { return loss_T_; }

 private:
  // Forms the loss of tokens [begin, begin + count), and the logits' gradients if the tape records.
  // Returns what ops::add_low_rank() returned.
  std::vector<Tensor> form_loss(int64_t begin, int64_t count) {
    const Tensor logits = logits_CV_.slice(0, 0, count);
    const Tensor labels = labels_T_.slice(0, begin, count),
                 weights = weights_T_.slice(0, begin, count);
    products_.logits(x_TH_.slice(0, begin, count), logits);
    std::vector<Tensor> inner =
        ops::add_low_rank(tape_, adapter_, adapted_TH_.slice(0, begin, count), logits);
    LogitChunk chunk{.logits = logits,
                     .labels = labels,
                     .weights = weights,
                     .exponentials = logits,
                     .loss = loss_T_.slice(0, begin, count)};
    if (hits_T_.defined()) chunk.hits = hits_T_.slice(0, begin, count);
    if (exponentials_CV_.defined()) chunk.exponentials = exponentials_CV_.slice(0, 0, count);
    if (tape_.recording()) chunk.dlogits = dlogits_CV_.slice(0, 0, count);
    chunk_losses(tape_, chunk, first_, soft_cap_, tp_, "vocabulary_loss, stats");
    return inner;
  }

  Tape& tape_;
  const Weight &weight_, &bias_;
  ops::OutputProducts products_;
  const ops::LowRank& adapter_;
  int64_t first_;
  double soft_cap_;
  const Tensor &labels_T_, &weights_T_, &hits_T_;
  const TensorParallel& tp_;
  int64_t tokens_;
  DType type_, sums_;
  bool needs_dx_;
  Tensor x_TH_, adapted_TH_, dx_TH_, loss_T_, logits_CV_, exponentials_CV_, dlogits_CV_;
};

}  // namespace

int64_t largest_vocabulary_share(int64_t first, int64_t rows, int rank) {
  return rank == 0 ? rows : ceil_div(first, rank);
}

Var vocabulary_embedding(Tape& tape, const Tensor& ids, const Weight& table, int64_t first,
                         const TensorParallel& tp, const ops::ReplacedRows& replaced) {
  if (alone(tp.group)) return ops::embedding(tape, ids, table, replaced);
  const Var partial = ops::embedding_part(tape, ids, table, first, partial_memory(tp), replaced);
  return sum_of_parts(tape, partial, tp, "vocabulary_embedding");
}

Tensor vocabulary_cross_entropy(Tape& tape, const Var& x, const Weight& weight, int64_t first,
                                const Tensor& labels, const Tensor& weights,
                                const TensorParallel& tp, double soft_cap,
                                const ops::LowRank& adapter, const Weight& bias,
                                const Tensor& hits) {
  if (alone(tp.group))
    return ops::linear_cross_entropy(tape, x, weight, labels, weights, soft_cap, adapter, bias,
                                     hits);
  DividedLoss loss(tape, x, weight, first, labels, weights, tp, soft_cap, adapter, bias, hits);
  PendingDx dx = loss.run();
  if (tape.recording()) {
    tape.gradient_done(weight);
    if (bias) tape.gradient_done(bias);
    ops::for_each_weight(adapter, [&](const Weight& w) { tape.gradient_done(w); });
    Node node{
        .name = "vocabulary_cross_entropy", .inputs = {x.id}, .dgrad = loss_dgrad, .root = true};
    node.attributes = std::move(dx);
    tape.record_one(std::move(node), loss.loss());
  }
  return loss.loss();
}

Var vocabulary_linear(Tape& tape, const Var& x, const Weight& weight, int64_t vocabulary,
                      const TensorParallel& tp, double soft_cap, const ops::LowRank& adapter,
                      const Weight& bias) {
  const Var part = ops::soft_cap(tape, column_linear(tape, x, weight, bias, tp, adapter), soft_cap);
  if (alone(tp.group)) return part;
  return gather_columns(tape, part, vocabulary, *tp.group, "vocabulary_linear");
}

Tensor vocabulary_logits(Tape& tape, const Tensor& x, const Weight& weight, int64_t vocabulary,
                         const TensorParallel& tp, double soft_cap, const ops::LowRank& adapter,
                         const Weight& bias) {
  if (alone(tp.group)) return ops::linear_logits(x, weight, tape, soft_cap, adapter, bias);
  Tensor whole = x;
  if (tp.divides_tokens()) {
    whole = gathered_rows(tape, x, *tp.group, "vocabulary_logits, x", MemoryClass::communication);
  }
  return gathered_columns(tape, ops::linear_logits(whole, weight, tape, soft_cap, adapter, bias),
                          vocabulary, *tp.group, "vocabulary_logits");
}

}  // namespace megatron::parallel
