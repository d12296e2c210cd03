#include "tokenizers/trainer/word_counts.h"

#include <functional>
#include <limits>

#include "base/error.h"

namespace megatron::tokenizers {

void WordCounts::grow() {
  slots_.assign(slots_.empty() ? 4096 : slots_.size() * 2, 0);
  const size_t mask = slots_.size() - 1;
  for (size_t i = 0; i < words_.size(); ++i) {
    size_t slot = words_[i].hash & mask;
    while (slots_[slot] != 0) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<uint32_t>(i + 1);
  }
}

void WordCounts::add(std::string_view word, int64_t count) {
  constexpr uint32_t kLimit = std::numeric_limits<int32_t>::max();
  if (slots_.size() < 2 * (words_.size() + 1)) grow();
  const auto hash = static_cast<uint32_t>(std::hash<std::string_view>()(word));
  const size_t mask = slots_.size() - 1;
  size_t slot = hash & mask;
  for (; slots_[slot] != 0; slot = (slot + 1) & mask) {
    Word& known = words_[slots_[slot] - 1];
    if (known.hash != hash || this->word(slots_[slot] - 1) != word) continue;
    known.count += count;
    return;
  }
  MG_CHECK(words_.size() < kLimit && word.size() < kLimit,
           "the text has more than {} different words (or a word of more than {} bytes); train on "
           "a part of it",
           kLimit, kLimit);
  words_.push_back({texts_.size(), count, static_cast<uint32_t>(word.size()), hash});
  texts_.append(word);
  slots_[slot] = static_cast<uint32_t>(words_.size());
}

void WordCounts::add(const WordCounts& other) {
  for (size_t i = 0; i < other.size(); ++i) add(other.word(i), other.count(i));
}

}  // namespace megatron::tokenizers
