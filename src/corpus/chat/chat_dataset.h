// A data set of chats for supervised fine-tuning: packed rows whose tokens carry loss in answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "corpus/chat/chat_tokens.h"
#include "corpus/chat/packed_rows.h"
#include "corpus/chat/sources.h"
#include "data/dataset.h"

namespace megatron::corpus {

// Tokens of many chats, one after the other.
struct ChatStore {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int64_t> ends = {};  // of each chat in the two
  Sources sources = {};            // of the chats
  int64_t dropped = 0;             // chats whose cut tokens carry no loss
  int64_t cut = 0;                 // chats longer than the limit
  int64_t answers_left_open = 0;   // chats whose last answer ends without a token of `stops`
  AnswerRule rule = AnswerRule::completion;  // of the first chat

  int64_t size() const { return static_cast<int64_t>(ends.size()); }
  int64_t begin(int64_t chat) const { return chat == 0 ? 0 : ends[static_cast<size_t>(chat - 1)]; }
  int64_t length(int64_t chat) const { return ends[static_cast<size_t>(chat)] - begin(chat); }
};

struct ChatReading {
  int64_t longest = 0;  // chats are cut to this many tokens; 0: never
  bool keep_start = true;
  std::vector<int32_t> stops;  // tokens at which generation ends; empty: not checked
};

// Reads and tokenizes the files (chat_reader.h), in their order, on the pool's threads. Shows its
// progress under `label`. Throws Error naming file and line of a bad record.
ChatStore read_chats(const std::vector<std::string>& paths, const ChatTokenizer& tokenizer,
                     const ChatReading& reading, ThreadPool& pool, const std::string& label);

// Rows of `length` tokens with whole chats, or parts of them, as documents that do not see each
// other: positions begin at 0 in each, and a document's first token is no label. Each epoch has all
// rows in an order drawn by seed and epoch. Padding tokens carry no loss; each is a document of its
// own, so that attention has nothing to compute for it.
class ChatDataset final : public data::Dataset {
 public:
  // chats: which of the store's belong to the set. samples: how many the run needs; absent: one
  // epoch. packing absent: a row per chat.
  ChatDataset(std::shared_ptr<const ChatStore> store, std::vector<int64_t> chats,
              std::optional<Packing> packing, int64_t length, int32_t padding, int64_t seed,
              std::optional<int64_t> samples);

  int64_t size() const override { return rows_.samples(); }
  void read(int64_t k, data::Sample& sample) const override;
  void read_filler(data::Sample& sample) const override;

  const PackedRows& rows() const { return rows_; }
  void request(int64_t samples) { rows_.request(samples); }

 private:
  void read_row(const PackedRow& row, data::Sample& sample) const;

  std::shared_ptr<const ChatStore> store_;
  std::vector<int64_t> chats_;
  PackedRows rows_;
  int64_t length_;
  int32_t padding_;
};

}  // namespace megatron::corpus
