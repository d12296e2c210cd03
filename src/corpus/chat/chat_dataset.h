// A data set of chats for supervised fine-tuning: packed rows whose tokens carry loss in answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "corpus/chat/chat_tokens.h"
#include "corpus/chat/example_dataset.h"
#include "corpus/chat/sources.h"

namespace megatron::corpus {

// Tokens of many chats, one after the other.
struct ChatStore {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int64_t> ends = {};  // of each chat in the two
  // Where further documents of a chat begin in the two, ascending.
  std::vector<int64_t> inner_begins = {};
  Sources sources = {};           // of the chats
  int64_t dropped = 0;            // chats whose cut tokens carry no loss
  int64_t cut = 0;                // chats longer than the limit
  int64_t answers_left_open = 0;  // chats whose last answer ends without a token of `stops`
  AnswerRule rule = AnswerRule::completion;  // of the first chat

  int64_t size() const { return static_cast<int64_t>(ends.size()); }
  int64_t begin(int64_t chat) const { return chat == 0 ? 0 : ends[static_cast<size_t>(chat - 1)]; }
  int64_t length(int64_t chat) const { return ends[static_cast<size_t>(chat)] - begin(chat); }
};

struct ChatReading {
  int64_t longest = 0;  // chats are cut to this many tokens; 0: never
  bool keep_start = true;
  std::vector<int32_t> stops;  // tokens at which generation ends; empty: not checked
  // Chats are records of Megatron-LM's --sft: several conversations, each a document.
  std::optional<PromptFormat> format = {};
};

// Reads and tokenizes the files (chat_reader.h), in their order, on the pool's threads. Shows its
// progress under `label`. Throws Error naming file and line of a bad record.
ChatStore read_chats(const std::vector<std::string>& paths, const ChatTokenizer& tokenizer,
                     const ChatReading& reading, ThreadPool& pool, const std::string& label);

// Whole chats, or parts of them; a document's first token is no label.
class ChatDataset final : public ExampleDataset {
 public:
  // The arguments are those of ExampleDataset, of which `rest` are those after the examples.
  template <class... Rest>
  ChatDataset(std::shared_ptr<const ChatStore> store, std::vector<int64_t> examples, Rest&&... rest)
      : ExampleDataset(*store, std::move(examples), std::forward<Rest>(rest)...),
        store_(std::move(store)) {}

 private:
  void fill(const PackedRow& row, data::Sample& sample) const override;
  // Tokens [from, to) of the store.
  void fill_document(int64_t from, int64_t to, size_t source, size_t& at,
                     data::Sample& sample) const;

  std::shared_ptr<const ChatStore> store_;
};

}  // namespace megatron::corpus
