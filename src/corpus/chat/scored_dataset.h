// Data sets of texts that are scored at one token: pairs of which one is preferred, and texts with
// labels.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "corpus/chat/chat_reader.h"
#include "corpus/chat/chat_tokens.h"
#include "corpus/chat/example_dataset.h"
#include "corpus/chat/sources.h"
#include "models/facts.h"
#include "tokenizers/text_ends.h"

namespace megatron::corpus {

// Tokens of many examples, one text after the other.
struct ScoredStore {
  int64_t texts_per_example = 1;  // 2: pairs, the chosen text first
  std::vector<int32_t> ids;
  std::vector<int32_t> types = {};  // token types of ids; empty: no text has others than 0
  std::vector<int64_t> ends;        // of each text in ids
  std::vector<int64_t> scored;      // index in ids of the token of each text that is scored
  std::vector<int32_t> labels;      // of each example without a pair
  // The classes of each example whose text may have several, in place of its label.
  std::vector<std::vector<int32_t>> label_sets = {};
  std::vector<double> margins;  // of each pair
  Sources sources = {};         // of the examples
  int64_t cut = 0;              // texts longer than the limit
  int64_t dropped = 0;          // pairs whose texts are equal after they are cut

  int64_t size() const { return std::ssize(ends) / texts_per_example; }
  int64_t begin(int64_t text) const { return text == 0 ? 0 : ends[static_cast<size_t>(text - 1)]; }
  int64_t length(int64_t example) const {
    return begin((example + 1) * texts_per_example) - begin(example * texts_per_example);
  }
};

struct ScoredReading {
  int64_t capacity = 0;  // of a row, in tokens: a longer text, or pair of texts, is cut
  bool keep_start = true;
  // As in transformers' classes for sequence classification, the score is that of the last token
  // with another id; -1: of the last token.
  int32_t padding = -1;
  models::ScoredTokens scored = models::ScoredTokens::last_token;
  bool multi_label = false;  // ModelFacts::multi_label
  int64_t token_types = 0;   // of the model
  // The tokens of an encoder's tokenizer around a text, which a text that is cut keeps.
  tokenizers::TextEnds ends = {};
};

// How texts are read for a model with scores: their padding, scored tokens and ends.
ScoredReading scored_reading(const models::ModelFacts& model,
                             const tokenizers::Tokenizer& tokenizer);

// What a model reads of a labelled text, or of two: these as the tokenizer joins them, the longer
// one cut first.
struct LabelledTokens {
  std::vector<int32_t> ids, types;  // types: of two texts, of a model with several
  bool cut = false;                 // a text of two; a single one is whole
};
// Throws Error naming the place if the tokenizer's own tokens leave two texts no room.
LabelledTokens labelled_tokens(const ScoredText& scored, const ChatTokenizer& tokenizer,
                               const ScoredReading& reading, const std::string& place);

// Index of the token of a text that is scored; -1: none is. Of scores of the first token, and of
// the mean of all tokens, which each token has: 0.
int64_t scored_token(std::span<const int32_t> ids, int64_t padding,
                     models::ScoredTokens scored = models::ScoredTokens::last_token);

// Read the files (chat_reader.h), in their order, on the pool's threads. Show their progress under
// `label`. Throw Error naming file and line of a bad record: no tokens to score, two equal texts, a
// label that is none of `names`.
ScoredStore read_pairs(const std::vector<std::string>& paths, const ChatTokenizer& tokenizer,
                       const ScoredReading& reading, ThreadPool& pool, const std::string& label);
ScoredStore read_labelled(const std::vector<std::string>& paths, const ChatTokenizer& tokenizer,
                          const ScoredReading& reading, const std::vector<std::string>& names,
                          ThreadPool& pool, const std::string& label);

// The class that a label, a name or an index, is among `names`. Throws Error naming the place if it
// is none of them.
int32_t class_of(const Json& label, const std::vector<std::string>& names,
                 const std::string& place);

// The classes of a text that may have several, in ascending order. Throws Error naming the place
// for a label that is no list of different classes.
std::vector<int32_t> classes_of(const Json& label, const std::vector<std::string>& names,
                                const std::string& place);
// True if the first text of the files has a list of labels.
bool has_label_lists(const std::vector<std::string>& paths);

// The classes of the labels in files: the names, sorted; or LABEL_0 to that of the largest index.
// labels_of: the labels of a record, of which null is none; default: that of a text. Throws Error
// if there are both names and indices, or fewer than two classes.
std::vector<std::string> label_names_in(const std::vector<std::string>& paths);
std::vector<std::string> label_names_in(
    const std::vector<std::string>& paths,
    const std::function<std::vector<Json>(const Json& record, const std::string& place)>&
        labels_of);

// The loss mask is 1 at the token of each text that is scored, and its label is the class, or its
// label_sets the classes; of a pair, which is two documents, the targets at the chosen text have
// its margin.
class ScoredDataset final : public ExampleDataset {
 public:
  // The arguments are those of ExampleDataset, of which `rest` are those after the examples.
  template <class... Rest>
  ScoredDataset(std::shared_ptr<const ScoredStore> store, std::vector<int64_t> examples,
                Rest&&... rest)
      : ExampleDataset(*store, std::move(examples), std::forward<Rest>(rest)...),
        store_(std::move(store)) {}

 private:
  void fill(const PackedRow& row, data::Sample& sample) const override;

  std::shared_ptr<const ScoredStore> store_;
};

}  // namespace megatron::corpus
