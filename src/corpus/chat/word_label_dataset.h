// A data set of texts whose words have labels (token classification).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "corpus/chat/encoder_records.h"
#include "corpus/chat/example_dataset.h"
#include "corpus/chat/sources.h"
#include "tokenizers/text_ends.h"

namespace megatron::corpus {

// The tokens of a text of words, and the label of each token: that of a word at its first token,
// kNone at all others.
struct WordLabelTokens {
  static constexpr int32_t kNone = -1;
  std::vector<int32_t> ids, labels;
  int64_t words = 0;    // words with a label
  int64_t without = 0;  // those of which no token is left: they have none, or are cut off
  bool cut = false;     // the text is longer than the limit
};

struct WordLabelReading {
  int64_t capacity = 0;  // of a row, in tokens: a longer text is cut
  bool keep_start = true;
  tokenizers::TextEnds ends = {};           // tokens of the tokenizer around a text, which stay
  std::string_view limit = "--seq-length";  // flag that sets the capacity
};

// Words are joined by spaces and tokenized together, with the tokenizer's special tokens around
// them. A token that reaches into several words is the first one's. names: the model's classes.
// Throws Error naming the place for a label that is none of them, and a tokenizer that does not say
// where its tokens stand in a text.
WordLabelTokens word_label_tokens(const LabelledWords& text, const tokenizers::Tokenizer& tokenizer,
                                  const WordLabelReading& reading,
                                  const std::vector<std::string>& names, const std::string& place);

// Tokens of many texts, one after the other.
struct WordLabelStore {
  std::vector<int32_t> ids, labels;  // WordLabelTokens
  std::vector<int64_t> ends;         // of each text in ids
  Sources sources = {};
  int64_t words = 0, without = 0;  // sums of WordLabelTokens'
  int64_t cut = 0;                 // texts longer than the limit

  int64_t size() const { return std::ssize(ends); }
  int64_t begin(int64_t text) const { return text == 0 ? 0 : ends[static_cast<size_t>(text - 1)]; }
  int64_t length(int64_t text) const { return begin(text + 1) - begin(text); }
};

// Reads the files (chat_reader.h), in their order, on the pool's threads. Shows its progress under
// `label`. Throws Error naming file and line of a bad record.
WordLabelStore read_word_labels(const std::vector<std::string>& paths,
                                const tokenizers::Tokenizer& tokenizer,
                                const WordLabelReading& reading,
                                const std::vector<std::string>& names, ThreadPool& pool,
                                const std::string& label);

// The loss mask is 1 at the tokens that have a label.
class WordLabelDataset final : public ExampleDataset {
 public:
  // The arguments are those of ExampleDataset, of which `rest` are those after the examples.
  template <class... Rest>
  WordLabelDataset(std::shared_ptr<const WordLabelStore> store, std::vector<int64_t> examples,
                   Rest&&... rest)
      : ExampleDataset(*store, std::move(examples), std::forward<Rest>(rest)...),
        store_(std::move(store)) {}

 private:
  void fill(const PackedRow& row, data::Sample& sample) const override;

  std::shared_ptr<const WordLabelStore> store_;
};

}  // namespace megatron::corpus
