// The main loop of BPE training: learns merges from counted words. bpe_trainer.h states the rules.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tokenizers/models/pair_map.h"
#include "tokenizers/trainer/word_counts.h"
#include "tokenizers/vocabulary.h"

namespace megatron::tokenizers {

class MergeLearner {
 public:
  // vocabulary: special tokens and letters, with consecutive ids; grows by one token per merge.
  // max_length: exclusive limit on a token's bytes.
  MergeLearner(const WordCounts& words, Vocabulary& vocabulary, int64_t max_length);

  // pair_key of each merge, by rank.
  std::vector<uint64_t> learn(int64_t vocabulary_size, int64_t min_count,
                              const std::function<void(int64_t)>& progress);

 private:
  struct Word {
    uint64_t begin;  // in symbols_
    uint32_t size;
    int64_t count;
  };
  struct Candidate {
    int64_t count;
    uint64_t pair;
    size_t places;  // index in places_
  };

  static bool later(const Candidate& a, const Candidate& b) {
    return a.count != b.count ? a.count < b.count : a.pair > b.pair;
  }
  void push(uint64_t pair, std::vector<int32_t> places);
  void merge_in(int32_t word, uint64_t pair, int32_t joined);
  void push_changes();
  int32_t token_of(uint64_t pair);

  Vocabulary& vocabulary_;
  int64_t max_length_;
  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  std::vector<int64_t> lengths_;  // bytes of each token
  PairMap counts_;
  std::vector<Candidate> queue_;
  std::vector<std::vector<int32_t>> places_;  // words in which each candidate occurs
  std::vector<size_t> free_places_;
  std::vector<std::pair<uint64_t, int32_t>>
      changes_;  // pairs that the current merge created, and where
};

}  // namespace megatron::tokenizers
