#include "corpus/chat/chat_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/progress.h"
#include "corpus/chat/chat_reader.h"
#include "data/random_state.h"

namespace megatron::corpus {
namespace {

constexpr size_t kTogether = 512;  // records that are tokenized at a time

struct PlacedRecord {
  Json json;
  std::string place;
};

// Tokenizes blocks of records on all threads and appends them in order.
class Storing {
 public:
  Storing(const ChatTokenizer& tokenizer, const ChatReading& reading, ThreadPool& pool,
          ChatStore& store)
      : tokenizer_(tokenizer), reading_(reading), pool_(pool), store_(store) {}

  void add(Json record, std::string place) {
    records_.push_back({std::move(record), std::move(place)});
    if (records_.size() == kTogether) flush();
  }

  void flush() {
    std::vector<ChatTokens> tokens(records_.size());
    std::vector<AnswerRule> rules(records_.size());
    pool_.parallel_for(std::ssize(records_), [&](int64_t i, int) {
      const auto at = static_cast<size_t>(i);
      const ChatExample example = example_of(records_[at].json, std::move(records_[at].place));
      tokens[at] = tokenizer_.tokens(example);
      rules[at] = tokenizer_.rule(example);
    });
    if (store_.size() == 0 && !rules.empty()) store_.rule = rules[0];
    for (ChatTokens& one : tokens) append(one);
    records_.clear();
  }

 private:
  void append(ChatTokens& tokens) {
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
  }

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

  const ChatTokenizer& tokenizer_;
  const ChatReading& reading_;
  ThreadPool& pool_;
  ChatStore& store_;
  std::vector<PlacedRecord> records_;
};

}  // namespace

ChatStore read_chats(const std::vector<std::string>& paths, const ChatTokenizer& tokenizer,
                     const ChatReading& reading, ThreadPool& pool, const std::string& label) {
  ChatStore store;
  Storing storing(tokenizer, reading, pool, store);
  Progress progress(label, -1, "chats");
  int64_t read = 0;
  read_records(paths, [&](Json record, std::string place) {
    storing.add(std::move(record), std::move(place));
    if (++read % static_cast<int64_t>(kTogether) == 0) progress.update(read);
    return true;
  });
  storing.flush();
  progress.update(read);
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
    : store_(std::move(store)), chats_(std::move(chats)), length_(length), padding_(padding) {
  MG_ASSERT(!chats_.empty());
  std::vector<int64_t> lengths;
  for (const int64_t chat : chats_) lengths.push_back(store_->length(chat));
  if (packing) {
    rows_ = pack(lengths, length, *packing);
  } else {
    for (int64_t i = 0; i < std::ssize(lengths); ++i)
      rows_.push_back({{i, 0, std::min(lengths[static_cast<size_t>(i)], length)}});
  }
  const int64_t needed = samples.value_or(rows());
  for (int64_t epoch = 0; std::ssize(order_) < needed; ++epoch) {
    std::vector<int32_t> order(rows_.size());
    std::iota(order.begin(), order.end(), 0);
    data::RandomState((seed + epoch) & 0xFFFFFFFF).shuffle(std::span(order));
    order_.insert(order_.end(), order.begin(), order.end());
  }
  order_.resize(static_cast<size_t>(needed));
}

double ChatDataset::filled() const {
  double tokens = 0;
  for (const PackedRow& row : rows_)
    for (const PackedPart& part : row) tokens += static_cast<double>(part.length);
  return tokens / static_cast<double>(rows() * length_);
}

void ChatDataset::read(int64_t k, data::Sample& sample) const {
  MG_CHECK(k >= 0 && k < size(), "sample {} is outside [0, {})", k, size());
  read_row(rows_[static_cast<size_t>(order_[static_cast<size_t>(k)])], sample);
}

void ChatDataset::read_filler(data::Sample& sample) const {
  read_row(rows_[static_cast<size_t>(order_[0])], sample);
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
