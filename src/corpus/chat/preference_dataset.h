// A data set of preferences: a chosen and a rejected completion of a prompt, or single completions
// that are desirable or not.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "corpus/chat/chat_tokens.h"
#include "corpus/chat/example_dataset.h"
#include "corpus/chat/preference_role.h"
#include "corpus/chat/sources.h"

namespace megatron::corpus {

// What a loss reads.
struct PreferenceUse {
  bool prompts = false;   // the log-probabilities of prompts before chosen completions, too
  bool unpaired = false;  // single completions, each of which is desirable or not
  // Unpaired: before each document, a mismatched one: its prompt with the completion of another
  // example.
  bool mismatched = false;
};

struct PreferenceReading {
  int64_t capacity = 0;  // of a row, in tokens
  bool keep_start = true;
  PreferenceUse use = {};
};

// A document of a row, as two ranges of the store's ids.
struct PreferenceDocument {
  int64_t prompt_begin = 0, prompt_length = 0, completion_begin = 0, completion_length = 0;
  PreferenceRole role = PreferenceRole::none;  // of the completion

  int64_t length() const { return prompt_length + completion_length; }
};

// Tokens of many completions, each after its prompt.
struct PreferenceStore {
  PreferenceReading reading;
  std::vector<int32_t> ids;
  // For each example the chosen and the rejected one, or the completion with a label.
  std::vector<PreferenceDocument> documents;
  // For each example, the one whose completion stands in its mismatched document.
  std::vector<int64_t> mismatched = {};
  Sources sources = {};  // of the examples
  int64_t cut = 0;       // documents that were cut
  int64_t dropped = 0;   // examples of which cutting left nothing to compare
  int64_t margins = 0;   // pairs with a margin, which has no use here

  int64_t size() const { return std::ssize(documents) / (reading.use.unpaired ? 1 : 2); }
  // The documents of an example in the order of their row; without a mismatched one, the first of
  // an unpaired example is empty.
  std::array<PreferenceDocument, 2> pair(int64_t example) const;
  int64_t length(int64_t example) const {
    const auto [first, second] = pair(example);
    return first.length() + second.length();
  }
};

// Reads and tokenizes the files (preference_of() of chat_reader.h), in their order, on the pool's
// threads. Shows its progress under `label`. A pair longer than a row is cut as lengths_within()
// says; a document with a mismatched one before it is cut to half a row, as is that. With
// `unpaired`, a pair is two examples. A mismatched document has the completion of the nearest
// example before it with another prompt (if all have the same one: of the example before it);
// before the first example comes the last. Throws Error naming file and line of a bad record: no
// tokens to compare, equal completions, no pair.
PreferenceStore read_preferences(const std::vector<std::string>& paths,
                                 const ChatTokenizer& tokenizer, const PreferenceReading& reading,
                                 ThreadPool& pool, const std::string& label);

// Each example is two documents of a row, one after the other. The labels are the next tokens. The
// loss mask is 1 where the loss reads the label's log-probability, and the targets are the labels'
// PreferenceRole.
class PreferenceDataset final : public ExampleDataset {
 public:
  // The arguments are those of ExampleDataset, of which `rest` are those after the examples.
  template <class... Rest>
  PreferenceDataset(std::shared_ptr<const PreferenceStore> store, std::vector<int64_t> examples,
                    Rest&&... rest)
      : ExampleDataset(*store, std::move(examples), std::forward<Rest>(rest)...),
        store_(std::move(store)) {}

 private:
  void fill(const PackedRow& row, data::Sample& sample) const override;
  void add(const PreferenceDocument& document, size_t source, size_t& at,
           data::Sample& sample) const;

  std::shared_ptr<const PreferenceStore> store_;
};

}  // namespace megatron::corpus
