#include "corpus/chat/chat_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "corpus/chat/record_blocks.h"

namespace megatron::corpus {
namespace {

// Cuts chats, and appends those that carry loss.
class Storing {
 public:
  Storing(const ChatReading& reading, ChatStore& store) : reading_(reading), store_(store) {}

  // inner_begins: where further documents of the chat begin.
  void append(ChatTokens& tokens, const std::vector<int64_t>& inner_begins,
              const std::string& source) {
    if (!reading_.stops.empty() && ends_open(tokens)) ++store_.answers_left_open;
    if (reading_.longest > 0 && std::ssize(tokens.ids) > reading_.longest) {
      ++store_.cut;
      truncate(tokens, reading_.longest, reading_.keep_start);
    }
    // The first token of a document is no label.
    if (!tokens.weights.empty()) tokens.weights[0] = 0;
    for (const int64_t inner : inner_begins)
      if (inner < std::ssize(tokens.ids)) tokens.weights[static_cast<size_t>(inner)] = 0;
    if (tokens.counted() == 0) {
      ++store_.dropped;
      return;
    }
    const int64_t begin = std::ssize(store_.ids);
    for (const int64_t inner : inner_begins)
      if (inner < std::ssize(tokens.ids)) store_.inner_begins.push_back(begin + inner);
    store_.ids.insert(store_.ids.end(), tokens.ids.begin(), tokens.ids.end());
    store_.weights.insert(store_.weights.end(), tokens.weights.begin(), tokens.weights.end());
    store_.ends.push_back(std::ssize(store_.ids));
    store_.sources.add(source);
  }

 private:
  // True if generation would not stop after the last answer: no stop token carries loss after its
  // last other token.
  bool ends_open(const ChatTokens& tokens) const {
    const auto last = std::find_if(tokens.weights.rbegin(), tokens.weights.rend(),
                                   [](float w) { return w != 0; });
    if (last == tokens.weights.rend()) return false;
    for (size_t i = static_cast<size_t>(tokens.weights.rend() - last); i-- > 0;) {
      if (tokens.weights[i] == 0) return true;
      if (std::ranges::find(reading_.stops, tokens.ids[i]) != reading_.stops.end()) return false;
    }
    return true;
  }

  const ChatReading& reading_;
  ChatStore& store_;
};

struct ReadChat {
  ChatTokens tokens;
  std::vector<int64_t> inner_begins;
  AnswerRule rule = AnswerRule::completion;
  std::string source;
};

// A record of --sft: its conversations, one after the other.
ReadChat conversations(ChatExample example, const ChatTokenizer& tokenizer, PromptFormat format) {
  ReadChat chat{.rule = format == PromptFormat::chat_template ? AnswerRule::everything
                                                              : AnswerRule::messages};
  for (const ChatExample& conversation : conversations_of(std::move(example))) {
    if (!chat.tokens.ids.empty()) chat.inner_begins.push_back(std::ssize(chat.tokens.ids));
    const ChatTokens part = tokenizer.tokens(conversation, format);
    chat.tokens.ids.insert(chat.tokens.ids.end(), part.ids.begin(), part.ids.end());
    chat.tokens.weights.insert(chat.tokens.weights.end(), part.weights.begin(), part.weights.end());
  }
  return chat;
}

}  // namespace

ChatStore read_chats(const std::vector<std::string>& paths, const ChatTokenizer& tokenizer,
                     const ChatReading& reading, ThreadPool& pool, const std::string& label) {
  ChatStore store;
  Storing storing(reading, store);
  for_each_tokenized<ReadChat>(
      paths, pool, label,
      [&](const Json& record, const std::string& place) {
        ChatExample example = example_of(record, place);
        ReadChat chat =
            reading.format
                ? conversations(std::move(example), tokenizer, *reading.format)
                : ReadChat{.tokens = tokenizer.tokens(example), .rule = tokenizer.rule(example)};
        chat.source = source_of(record, place);
        return chat;
      },
      [&](ReadChat& chat) {
        if (store.size() + store.dropped == 0) store.rule = chat.rule;
        storing.append(chat.tokens, chat.inner_begins, chat.source);
      });
  MG_CHECK(store.size() > 0 || store.dropped > 0, "{} has no chats", paths[0]);
  MG_CHECK(store.size() > 0,
           "none of the {} chats of {} keeps an answer{}: raise --seq-length, or look at the chats "
           "with megatron sft --show 3",
           store.dropped, paths[0],
           reading.longest > 0
               ? fmt::format(" when it is cut to {} tokens (--seq-length)", reading.longest)
               : "");
  return store;
}

void ChatDataset::fill(const PackedRow& row, data::Sample& sample) const {
  size_t at = 0;
  for (const PackedPart& part : row) {
    const size_t source = store_->sources.of(example_of(part));
    const int64_t end = store_->begin(example_of(part)) + part.begin + part.length;
    int64_t begin = end - part.length;
    for (auto inner = std::ranges::upper_bound(store_->inner_begins, begin); begin < end; ++inner) {
      const bool more = inner != store_->inner_begins.end() && *inner < end;
      const int64_t next = more ? *inner : end;
      fill_document(begin, next, source, at, sample);
      if (!more) break;
      begin = next;
    }
  }
}

void ChatDataset::fill_document(int64_t from, int64_t to, size_t source, size_t& at,
                                data::Sample& sample) const {
  const auto first = static_cast<size_t>(from), length = static_cast<size_t>(to - from), begin = at;
  place(std::span(store_->ids).subspan(first, length), source, at, sample);
  for (size_t i = 1; i < length; ++i) {
    sample.labels[begin + i - 1] = store_->ids[first + i];
    sample.loss_mask[begin + i - 1] = store_->weights[first + i];
  }
}

}  // namespace megatron::corpus
