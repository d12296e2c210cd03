// Counts how often each word occurs, in an open-addressing hash table over one arena of bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::tokenizers {

class WordCounts {
 public:
  void add(std::string_view word, int64_t count);
  void add(const WordCounts& other);

  size_t size() const { return words_.size(); }
  std::string_view word(size_t i) const {
    return std::string_view(texts_).substr(words_[i].begin, words_[i].size);
  }
  int64_t count(size_t i) const { return words_[i].count; }

 private:
  struct Word {
    uint64_t begin;
    int64_t count;
    uint32_t size, hash;
  };
  void grow();

  std::string texts_;
  std::vector<Word> words_;
  std::vector<uint32_t> slots_;  // index + 1; 0: free
};

}  // namespace megatron::tokenizers
