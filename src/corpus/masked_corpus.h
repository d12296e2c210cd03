// Data sets of masked language models: sentences of token files, with masked tokens.
#pragma once

#include "corpus/sentence_corpus.h"
#include "data/bert_dataset.h"
#include "models/facts.h"

namespace megatron::corpus {

// The data sets of --data-path (or --train-data-path, ...), token files with a sequence per
// sentence (preprocess --split-sentences), as data/bert_dataset.h makes samples of them: pairs of
// texts for a model with a head for pairs. A row has one sample; the padding after it sees only
// itself and is seen by none. Throws Error like open_corpus(), and for a tokenizer without the
// tokens of BERT's samples and a validation set that is read completely.
Corpus open_masked(const ExampleFiles& files, const models::ModelFacts& model);

// Samples as rows of `length` tokens, padded with `pad`. pairs: with labels of pairs.
class MaskedRows final : public SentenceRows {
 public:
  MaskedRows(std::shared_ptr<const data::BertExamples> examples, int64_t length, int64_t pad,
             bool pairs)
      : examples_(std::move(examples)), length_(length), pad_(pad), pairs_(pairs) {}
  int64_t size() const override { return examples_->size(); }
  bool keeps_order(int64_t samples) const override { return examples_->keeps_order(samples); }
  bool sized_by_request() const override { return examples_->sized_by_request(); }
  void read(int64_t k, data::Sample& sample) const override;
  void read_filler(data::Sample& sample) const override;

 private:
  std::shared_ptr<const data::BertExamples> examples_;
  int64_t length_, pad_;
  bool pairs_;
};

}  // namespace megatron::corpus
