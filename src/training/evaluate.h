// Loss on held-out samples.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "comm/group.h"
#include "corpus/corpus.h"
#include "training/loss_pass.h"

namespace megatron::training {

// Losses (LossSum of training/step.h) of samples `indices` of a set, divided over the pass's
// data-parallel ranks; every rank gets all of them, in the order of `indices`. Bit for bit the same
// for any number of them and of pipeline stages, and any micro_batch (sequences a forward pass): a
// sample's loss is summed by itself, in the order of its tokens. Collective.
std::vector<LossSum> evaluate_samples(LossPass& pass, const data::Dataset& set,
                                      std::span<const int64_t> indices, int64_t micro_batch,
                                      int64_t seq_length);

// Their sum, added in the order of the samples: samples [first, first + count), and all of a set.
LossSum evaluate(LossPass& pass, const data::Dataset& set, int64_t first, int64_t count,
                 int64_t micro_batch, int64_t seq_length);
LossSum evaluate_all(LossPass& pass, const data::Dataset& set, int64_t micro_batch,
                     int64_t seq_length);

// Labels and how often they stand there.
class LabelCounts {
 public:
  void add(int64_t label) {
    ++counts_[label];
    ++total_;
  }
  // In nats, of the labels under their own frequencies: the loss of the best model that knows
  // nothing of context. 0 without labels.
  double entropy() const;

 private:
  std::map<int64_t, int64_t> counts_;
  int64_t total_ = 0;
};

// Of the counted labels of the same samples.
double unigram_entropy(const data::Dataset& set, int64_t first, int64_t count, int64_t seq_length);

}  // namespace megatron::training
