// Data sets for encoder-decoders that learn to write the masked spans of a text (T5).
#pragma once

#include "corpus/sentence_corpus.h"
#include "data/t5_dataset.h"

namespace megatron::corpus {

// The data sets of --data-path (or --train-data-path, ...), of whose sentences data/t5_dataset.h
// makes samples. Throws Error like open_sentences(); for a tokenizer without the tokens of T5's
// samples; and if one of the first samples has more spans than the tokenizer has sentinels, or does
// not fit the decoder's length.
Corpus open_spans(const ExampleFiles& files);

// Samples as rows: a text of `lengths.encoder` tokens for the encoder and one of `lengths.tokens`
// for the decoder, both padded with `pad`. Padding attends only to itself, and the decoder's also
// to the first token of the encoder's text; nothing attends to padding.
class SpanRows final : public SentenceRows {
 public:
  SpanRows(std::shared_ptr<const data::T5Examples> examples, const models::TextLength& lengths,
           int64_t pad)
      : examples_(std::move(examples)), lengths_(lengths), pad_(pad) {}
  int64_t size() const override { return examples_->size(); }
  bool keeps_order(int64_t samples) const override { return examples_->keeps_order(samples); }
  bool sized_by_request() const override { return examples_->sized_by_request(); }
  void read(int64_t k, data::Sample& sample) const override;
  void read_filler(data::Sample& sample) const override;

 private:
  std::shared_ptr<const data::T5Examples> examples_;
  models::TextLength lengths_;
  int64_t pad_;
};

}  // namespace megatron::corpus
