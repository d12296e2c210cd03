// Samples of whole sentences, which data sets for encoders and encoder-decoders are made of: the
// mapping of a split's documents into samples, and their stored tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/bert_tokens.h"
#include "data/indexed_dataset.h"
#include "data/sentence_mapping.h"
#include "data/split.h"

namespace megatron::data {

struct SentenceRequest {
  Split split = Split::train;
  std::optional<std::string> shares;  // of the documents; none: the source is a single split
  std::optional<int64_t> samples;     // fewest samples; must be given
  // Number of samples to serve, if it exceeds `samples`. The additional ones come from groups of 1,
  // 2, 4 ... whole epochs, each shuffled with its own seed, so that the samples before them keep
  // their order.
  int64_t extended = 0;
  int64_t tokens = 0;   // most tokens of a sample
  int64_t seed = 1234;  // in [1, 2^31 - 2]
  double short_sequence_probability = 0.1;
  int64_t min_sentences = 1;      // of a document and of all samples but its last
  std::optional<int64_t> memory;  // bytes; none: the machine's
};

class SentenceSamples {
 public:
  struct Row {
    int64_t first, end;  // sentences of the source
    int64_t target;      // length in tokens, which the sentences may exceed
  };

  // Throws Error naming the source and the split if it has no document, or none with enough
  // sentences.
  SentenceSamples(std::shared_ptr<const IndexedDataset> source, const SentenceRequest& request);

  int64_t size() const { return ends_.back(); }
  Row row(int64_t k) const;  // throws Error outside [0, size())
  int64_t length(int64_t sentence) const { return source_->length(sentence); }
  // Stored tokens of all sentences of sample k. Throws Error for one outside the vocabulary.
  void read(int64_t k, const BertTokens& vocabulary, std::vector<int64_t>& tokens) const;

  const std::string& path() const { return source_->path(); }
  // The mapping of the samples requested, without those of an extension.
  const SentenceMapping& mapping() const { return mappings_.front(); }
  // True if the samples come in the same order as if `samples` had been requested.
  bool keeps_order(int64_t samples) const;
  int64_t first_document() const { return first_document_; }
  int64_t documents() const { return documents_; }

 private:
  void choose_documents(const SentenceRequest& request);
  void build(const SentenceRequest& request);
  void warn_of_long_sentences(const SentenceRequest& request) const;

  std::shared_ptr<const IndexedDataset> source_;
  int64_t first_document_ = 0, documents_ = 0;
  std::vector<SentenceMapping> mappings_;
  std::vector<int64_t> ends_;  // cumulative number of samples up to each mapping
};

}  // namespace megatron::data
