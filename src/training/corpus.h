// The tokens a run trains on: tokenizer facts, data sets, and their samples as micro-batches.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "data/dataset.h"
#include "data/split.h"
#include "tokenizers/tokenizer.h"
#include "training/settings.h"

namespace megatron::training {

// What the data needs of a tokenizer.
struct Vocabulary {
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer;  // none for NullTokenizer and mock data
  std::string directory;                                   // where it was read
  int64_t size = 0;
  int64_t eod = -1;
  std::optional<int64_t> pad;
  Json identity;  // part of the index cache's key
};

// --tokenizer-type HuggingFaceTokenizer (the default with --tokenizer-model): tokenizer.json.
// NullTokenizer: needs vocab_size; end of document is its last id. Throws Error naming the flag
// that is missing or wrong.
Vocabulary open_vocabulary(const DataSettings& settings, std::optional<int64_t> vocab_size);

struct Corpus {
  std::array<std::unique_ptr<data::Dataset>, 3>
      sets;  // train, valid, test; null: no share of the documents
  const data::Dataset& set(
      data::Split split) const;  // throws Error naming --split when there is none
};

// samples: how many each set is asked for; none: one pass; 0: the set is not opened. Throws Error
// for token ids beyond the vocabulary.
Corpus open_corpus(const DataSettings& settings, const Vocabulary& vocabulary, int64_t seq_length,
                   int64_t seed, const std::array<std::optional<int64_t>, 3>& samples);

// Samples `indices` of a set as one micro-batch; an index is also the number of its sample in the
// run.
HostBatch read_batch(const data::Dataset& set, std::span<const int64_t> indices,
                     int64_t seq_length);

}  // namespace megatron::training
