// Loss on held-out samples.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "comm/group.h"
#include "corpus/corpus.h"
#include "training/loss_pass.h"

namespace megatron::training {

// Returns the losses (LossSum of training/step.h) of samples `indices` of a set, in that order, on
// every rank. The samples are divided among the pass's data-parallel ranks. Results are
// bit-identical for any number of these ranks and of pipeline stages, and for any micro_batch
// (sequences per forward pass), because each sample's loss is summed separately, in the order of
// its tokens. Collective.
std::vector<LossSum> evaluate_samples(LossPass& pass, const data::Dataset& set,
                                      std::span<const int64_t> indices, int64_t micro_batch,
                                      int64_t seq_length);

// Returns the sum of the losses of samples [first, first + count), or of a whole set, added in the
// order of the samples.
LossSum evaluate(LossPass& pass, const data::Dataset& set, int64_t first, int64_t count,
                 int64_t micro_batch, int64_t seq_length);
LossSum evaluate_all(LossPass& pass, const data::Dataset& set, int64_t micro_batch,
                     int64_t seq_length);

// Counts how often each label occurs.
class LabelCounts {
 public:
  void add(int64_t label) {
    ++counts_[label];
    ++total_;
  }
  // Entropy of the label frequencies in nats: the loss of the best model without context. 0 without
  // labels.
  double entropy() const;

 private:
  std::map<int64_t, int64_t> counts_;
  int64_t total_ = 0;
};

// Unigram entropy of the counted labels of the same samples.
double unigram_entropy(const data::Dataset& set, int64_t first, int64_t count, int64_t seq_length);

}  // namespace megatron::training
