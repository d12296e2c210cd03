// Data sets of samples that a task draws from the sentences of token files, with a sequence for
// each sentence (preprocess --split-sentences).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "corpus/chat/chat_corpus.h"
#include "data/blend_list.h"

namespace megatron::corpus {

// What one data set is made of.
struct SentenceSet {
  const data::BlendList& list;
  data::Split split;
  std::optional<std::string> shares;  // of the splits, in data that all share
  int64_t ordered;                    // samples whose number determines the order
  int64_t samples;  // samples that are read; those beyond `ordered` follow the others
};

// Samples as rows.
class SentenceRows : public data::Dataset {
 public:
  // True if the samples come in the same order as if `samples` had been requested.
  virtual bool keeps_order(int64_t samples) const = 0;
  // True if size() follows from the number of requested samples, as that of a blend does.
  virtual bool sized_by_request() const = 0;
};

struct SentenceTask {
  std::string_view name;  // that of --task
  std::function<std::shared_ptr<const SentenceRows>(data::Split split, int64_t samples)> mock;
  std::function<std::shared_ptr<const SentenceRows>(const SentenceSet& set)> open;
};

// The data sets of --data-path (or --train-data-path, ...), or mock data. Throws Error like
// open_corpus(), without a tokenizer, and for a validation set that is read completely.
Corpus open_sentences(const ExampleFiles& files, const SentenceTask& task);

}  // namespace megatron::corpus
