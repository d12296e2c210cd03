// Data sets for encoder-decoders that learn to write the masked spans of a text (T5).
#pragma once

#include "corpus/sentence_corpus.h"
#include "data/t5_dataset.h"

namespace megatron::corpus {

// The data sets of --data-path (or --train-data-path, ...), as data/t5_dataset.h makes samples of
// their sentences. Throws Error like open_sentences(), for a tokenizer without the tokens of T5's
// samples, and if it has too few sentinels for one of the first samples, or the decoder no room.
Corpus open_spans(const ExampleFiles& files);

// Samples as rows: a text of `lengths.encoder` tokens, and beside it the decoder's of
// `lengths.tokens`, both padded with `pad`. Padding sees only itself, and of the encoder's text its
// first token; nothing sees it.
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
