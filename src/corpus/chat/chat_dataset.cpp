#include "corpus/chat/chat_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "corpus/chat/record_blocks.h"

namespace megatron::corpus {
namespace {

// Cuts chats, and appends those that carry loss.
class Storing {
 public:
  Storing(const ChatReading& reading, ChatStore& store) : reading_(reading), store_(store) {}

  void append(ChatTokens& tokens, const std::string& source) {
    if (!reading_.stops.empty() && ends_open(tokens)) ++store_.answers_left_open;
    if (reading_.longest > 0 && std::ssize(tokens.ids) > reading_.longest) {
      ++store_.cut;
      truncate(tokens, reading_.longest, reading_.keep_start);
    }
    // The first token of a document is no label.
    if (!tokens.weights.empty()) tokens.weights[0] = 0;
    if (tokens.counted() == 0) {
      ++store_.dropped;
      return;
    }
    store_.ids.insert(store_.ids.end(), tokens.ids.begin(), tokens.ids.end());
    store_.weights.insert(store_.weights.end(), tokens.weights.begin(), tokens.weights.end());
    store_.ends.push_back(std::ssize(store_.ids));
    store_.sources.add(source);
  }

 private:
  // True if generation would not stop after the last answer: no stop token carries loss behind its
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
  AnswerRule rule = AnswerRule::completion;
  std::string source;
};

std::vector<int64_t> lengths_of(const ChatStore& store, const std::vector<int64_t>& chats) {
  MG_ASSERT(!chats.empty());
  std::vector<int64_t> lengths;
  for (const int64_t chat : chats) lengths.push_back(store.length(chat));
  return lengths;
}

}  // namespace

ChatStore read_chats(const std::vector<std::string>& paths, const ChatTokenizer& tokenizer,
                     const ChatReading& reading, ThreadPool& pool, const std::string& label) {
  ChatStore store;
  Storing storing(reading, store);
  for_each_tokenized<ReadChat>(
      paths, pool, label,
      [&](const Json& record, const std::string& place) {
        const ChatExample example = example_of(record, place);
        return ReadChat{tokenizer.tokens(example), tokenizer.rule(example),
                        source_of(record, place)};
      },
      [&](ReadChat& chat) {
        if (store.size() + store.dropped == 0) store.rule = chat.rule;
        storing.append(chat.tokens, chat.source);
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

ChatDataset::ChatDataset(std::shared_ptr<const ChatStore> store, std::vector<int64_t> chats,
                         std::optional<Packing> packing, int64_t length, int32_t padding,
                         int64_t seed, std::optional<int64_t> samples)
    : store_(std::move(store)),
      chats_(std::move(chats)),
      rows_(lengths_of(*store_, chats_), packing, length, seed, samples),
      length_(length),
      padding_(padding) {}

void ChatDataset::read(int64_t k, data::Sample& sample) const {
  read_row(rows_.of_sample(k), sample);
}

void ChatDataset::read_filler(data::Sample& sample) const {
  read(0, sample);
  std::ranges::fill(sample.loss_mask, 0.0f);
}

void ChatDataset::read_row(const PackedRow& row, data::Sample& sample) const {
  const auto length = static_cast<size_t>(length_);
  sample.tokens.assign(length, padding_);
  sample.labels.assign(length, 0);
  sample.position_ids.assign(length, 0);
  sample.loss_mask.assign(length, 0);
  sample.segment_begin.resize(length);
  std::iota(sample.segment_begin.begin(), sample.segment_begin.end(), 0);
  size_t at = 0;
  for (const PackedPart& part : row) {
    const auto from =
        static_cast<size_t>(store_->begin(chats_[static_cast<size_t>(part.document)]) + part.begin);
    const size_t begin = at;
    for (size_t i = 0; i < static_cast<size_t>(part.length); ++i, ++at) {
      sample.tokens[at] = store_->ids[from + i];
      sample.position_ids[at] = static_cast<int64_t>(i);
      sample.segment_begin[at] = static_cast<int32_t>(begin);
      if (i + 1 == static_cast<size_t>(part.length)) continue;
      sample.labels[at] = store_->ids[from + i + 1];
      sample.loss_mask[at] = store_->weights[from + i + 1];
    }
  }
}

}  // namespace megatron::corpus
