#include "tokenizers/trainer/merge_learner.h"

#include <algorithm>
#include <string>

#include "base/utf8.h"
#include "tokenizers/byte_level.h"

namespace megatron::tokenizers {

MergeLearner::MergeLearner(const WordCounts& words, Vocabulary& vocabulary, int64_t max_length)
    : vocabulary_(vocabulary), max_length_(max_length) {
  int32_t symbol_of[256];
  for (size_t b = 0; b < 256; ++b) {
    std::string letter;
    append_character(kByteLetters[b], letter);
    symbol_of[b] = vocabulary.find(letter).value_or(-1);
  }
  lengths_.assign(static_cast<size_t>(vocabulary.size()), 1);
  PairMap where;
  std::vector<std::pair<uint64_t, std::vector<int32_t>>> found;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view text = words.word(i);
    const auto word = static_cast<int32_t>(i);
    words_.push_back({symbols_.size(), static_cast<uint32_t>(text.size()), words.count(i)});
    for (size_t k = 0; k < text.size(); ++k) {
      symbols_.push_back(symbol_of[static_cast<unsigned char>(text[k])]);
      if (k == 0) continue;
      const uint64_t pair = pair_key(symbols_[symbols_.size() - 2], symbols_.back());
      counts_[pair] += words.count(i);
      int64_t& index = where[pair];
      if (index == 0) {
        found.emplace_back(pair, std::vector<int32_t>());
        index = static_cast<int64_t>(found.size());
      }
      std::vector<int32_t>& places = found[static_cast<size_t>(index - 1)].second;
      if (places.empty() || places.back() != word) places.push_back(word);
    }
  }
  for (auto& [pair, places] : found) push(pair, std::move(places));
}

void MergeLearner::push(uint64_t pair, std::vector<int32_t> places) {
  size_t index = places_.size();
  if (free_places_.empty()) {
    places_.push_back(std::move(places));
  } else {
    index = free_places_.back();
    free_places_.pop_back();
    places_[index] = std::move(places);
  }
  queue_.push_back({counts_[pair], pair, index});
  std::push_heap(queue_.begin(), queue_.end(), later);
}

int32_t MergeLearner::token_of(uint64_t pair) {
  const std::string text =
      std::string(vocabulary_.text(left_of(pair))).append(vocabulary_.text(right_of(pair)));
  if (const auto known = vocabulary_.find(text)) {
    lengths_[static_cast<size_t>(*known)] = lengths_[static_cast<size_t>(left_of(pair))] +
                                            lengths_[static_cast<size_t>(right_of(pair))];
    return *known;
  }
  const int32_t id = vocabulary_.size();
  vocabulary_.add(text, id);
  lengths_.push_back(lengths_[static_cast<size_t>(left_of(pair))] +
                     lengths_[static_cast<size_t>(right_of(pair))]);
  return id;
}

void MergeLearner::merge_in(int32_t index, uint64_t pair, int32_t joined) {
  Word& word = words_[static_cast<size_t>(index)];
  int32_t* symbols = symbols_.data() + word.begin;
  const int32_t left = left_of(pair), right = right_of(pair);
  const int64_t length = lengths_[static_cast<size_t>(joined)];
  const auto make = [&](int32_t a, int32_t b, int32_t neighbour) {
    if (lengths_[static_cast<size_t>(neighbour)] + length >= max_length_) return;
    counts_[pair_key(a, b)] += word.count;
    changes_.emplace_back(pair_key(a, b), index);
  };
  uint32_t kept = 0;
  for (uint32_t i = 0; i < word.size; ++i, ++kept) {
    if (i + 1 == word.size || symbols[i] != left || symbols[i + 1] != right) {
      symbols[kept] = symbols[i];
      continue;
    }
    if (kept > 0) {
      counts_[pair_key(symbols[kept - 1], left)] -= word.count;
      make(symbols[kept - 1], joined, symbols[kept - 1]);
    }
    if (i + 2 < word.size) {
      counts_[pair_key(right, symbols[i + 2])] -= word.count;
      make(joined, symbols[i + 2], symbols[i + 2]);
    }
    symbols[kept] = joined;
    ++i;
  }
  word.size = kept;
}

void MergeLearner::push_changes() {
  std::sort(changes_.begin(), changes_.end());
  changes_.erase(std::unique(changes_.begin(), changes_.end()), changes_.end());
  for (size_t begin = 0, end = 0; begin < changes_.size(); begin = end) {
    const uint64_t pair = changes_[begin].first;
    std::vector<int32_t> places;
    for (; end < changes_.size() && changes_[end].first == pair; ++end)
      places.push_back(changes_[end].second);
    if (counts_[pair] > 0) push(pair, std::move(places));
  }
  changes_.clear();
}

std::vector<uint64_t> MergeLearner::learn(int64_t vocabulary_size, int64_t min_count,
                                          const std::function<void(int64_t)>& progress) {
  PairMap rank_of;  // rank + 1 of the pair's last merge
  std::vector<uint64_t> merges;
  while (vocabulary_.size() < vocabulary_size && !queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), later);
    Candidate& top = queue_.back();
    if (top.count != counts_[top.pair]) {
      top.count = counts_[top.pair];
      std::push_heap(queue_.begin(), queue_.end(), later);
      continue;
    }
    if (top.count < min_count) break;
    const uint64_t pair = top.pair;
    const std::vector<int32_t> places = std::move(places_[top.places]);
    free_places_.push_back(top.places);
    queue_.pop_back();
    const int32_t joined = token_of(pair);
    merges.push_back(pair);
    rank_of[pair] = static_cast<int64_t>(merges.size());
    for (const int32_t word : places) merge_in(word, pair, joined);
    push_changes();
    if (progress && merges.size() % 256 == 0) progress(vocabulary_.size());
  }
  std::vector<uint64_t> last;  // a pair that is learnt again only keeps its later rank
  for (size_t i = 0; i < merges.size(); ++i) {
    if (rank_of[merges[i]] == static_cast<int64_t>(i + 1)) last.push_back(merges[i]);
  }
  return last;
}

}  // namespace megatron::tokenizers
