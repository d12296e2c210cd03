// Opens a run's chats as data sets.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "corpus/chat/chat_dataset.h"
#include "corpus/corpus.h"

namespace megatron::corpus {

// Finds out how chats become tokens: the vocabulary's tokenizer, and its chat template, or that of
// --chat-template. Throws Error naming the flags if there is no tokenizer.
class ChatSource {
 public:
  ChatSource(const settings::DataSettings& settings, const Vocabulary& vocabulary);
  const ChatTokenizer& tokenizer() const { return tokens_; }

 private:
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer_;
  tokenizers::ChatTemplate template_;
  ChatTokenizer tokens_;
};

// The data sets of --data-path (--train-data-path, ...), files of chats, as open_corpus opens those
// of token files. Without --split, --data-path is for training, but for 2% of the chats if samples
// of the validation set are asked for; its chats are drawn by the seed. stops: tokens at which
// generation ends. Logs what was read.
Corpus open_chats(const settings::DataSettings& settings, const Vocabulary& vocabulary,
                  int64_t seq_length, int64_t seed,
                  const std::array<std::optional<int64_t>, 3>& samples,
                  const std::vector<int32_t>& stops, ThreadPool& pool);

// Text of the first `count` chats for a terminal: tokens with loss in green, others grey.
std::string shown_chats(const settings::DataSettings& settings, const Vocabulary& vocabulary,
                        int64_t count, int64_t seq_length, bool colour);

}  // namespace megatron::corpus
