// The tokens of words seen lately: direct-mapped, one cache line an entry, 1 MB. Holds words of up
// to 26 bytes that give up to 9 tokens; nearly all words of a text.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace megatron::tokenizers {

class WordCache {
 public:
  static constexpr size_t kMaximumBytes = 26;
  static constexpr size_t kMaximumTokens = 9;

  struct alignas(64) Entry {
    char text[kMaximumBytes + 1] = {};  // the word, zeros, its size + 1 last
    uint8_t count = 0;
    int32_t ids[kMaximumTokens] = {};
  };

  // The entry where `word` (at most kMaximumBytes) belongs. It holds the word when holds(entry,
  // word).
  Entry& entry(std::string_view word) {
    uint64_t words[4] = {};
    std::memcpy(words, word.data(), word.size());
    uint64_t h = (words[0] ^ word.size() * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;
    if (word.size() > 8) {
      h = (h ^ h >> 32 ^ words[1]) * 0xc4ceb9fe1a85ec53ull;
      h = (h ^ h >> 32 ^ words[2]) * 0x9fb21c651e98df25ull;
      h = (h ^ h >> 32 ^ words[3]) * 0xff51afd7ed558ccdull;
    }
    return entries_[(h ^ h >> 32) & (kEntries - 1)];
  }
  static bool holds(const Entry& entry, std::string_view word) {
    return entry.text[kMaximumBytes] == static_cast<char>(word.size() + 1) &&
           std::memcmp(entry.text, word.data(), word.size()) == 0;
  }
  static void fill(Entry& entry, std::string_view word, std::span<const int32_t> ids) {
    if (ids.size() > kMaximumTokens) return;
    std::memcpy(entry.text, word.data(), word.size());
    entry.text[kMaximumBytes] = static_cast<char>(word.size() + 1);
    entry.count = static_cast<uint8_t>(ids.size());
    if (!ids.empty()) std::memcpy(entry.ids, ids.data(), ids.size_bytes());
  }

 private:
  static constexpr size_t kEntries = size_t{1} << 14;
  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

}  // namespace megatron::tokenizers
