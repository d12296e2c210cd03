// Cache of the tokens of recent words, at most 3 MB: two-way sets of 32-byte entries for words of
// up to 15 bytes and 4 tokens (nearly all words in Latin script), and of 64-byte entries for words
// of up to 30 bytes and 7 tokens. Lookups of short words can be deferred, so that their entries are
// prefetched while others are read.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::tokenizers {

class WordCache {
 public:
  // Appends the tokens of `word`; returns false if they are not cached.
  bool find(std::string_view word, std::vector<int32_t>& ids) {
    if (word.size() <= Short::kMaximumSize) return short_.find(word, ids);
    return word.size() <= Long::kMaximumSize && long_.find(word, ids);
  }
  // Defers `word` until take(). Returns false if it cannot be deferred because it is long, or
  // because too many words are waiting.
  bool keep(std::string_view word) {
    if (word.size() > Short::kMaximumSize || waiting_ == kMaximumWaiting) return false;
    waiting_words_[waiting_] = Key<2>(word);
    short_.prefetch(waiting_words_[waiting_++]);
    return true;
  }
  // Appends the tokens of the deferred words, in order; encode(word, ids) appends those of words
  // that are not cached.
  template <class F>
  void take(std::vector<int32_t>& ids, F&& encode) {
    for (size_t i = 0; i < waiting_; ++i) {
      const Key<2>& key = waiting_words_[i];
      if (short_.find(key, ids)) continue;
      const size_t before = ids.size();
      encode(key.word(), ids);
      short_.put(key, std::span(ids).subspan(before));
    }
    waiting_ = 0;
  }
  void put(std::string_view word, std::span<const int32_t> ids) {
    if (word.size() <= Short::kMaximumSize) {
      short_.put(word, ids);
    } else if (word.size() <= Long::kMaximumSize) {
      long_.put(word, ids);
    }
  }

 private:
  // A word, padded with zeros. The last byte of an entry's key holds the size + 1 in its lower five
  // bits and the number of tokens in the upper three; a free entry is all zeros.
  template <size_t Words>
  struct Key {
    static constexpr int kCountShift = 61;
    static constexpr uint64_t kWithoutCount = (uint64_t{1} << kCountShift) - 1;
    uint64_t words[Words] = {};

    Key() = default;
    explicit Key(std::string_view word) {
      if constexpr (Words == 2) {
        load(word.data(), word.size());
      } else {
        std::memset(words, 0, sizeof words);
        std::memcpy(words, word.data(), word.size());
      }
      words[Words - 1] |= (static_cast<uint64_t>(word.size()) + 1) << 56;
    }
    // Reads 16 bytes at once if they stay within the memory page in which the word begins.
    [[gnu::no_sanitize_address]] void load(const char* from, size_t size) {
      constexpr uintptr_t kPage = 4096;
      if ((reinterpret_cast<uintptr_t>(from) & (kPage - 1)) > kPage - sizeof words) {
        words[0] = words[1] = 0;
        std::memcpy(words, from, size);
        return;
      }
      asm("" : "+r"(from));  // hides the bytes beyond the word from the optimizer
      __builtin_memcpy(words, from, sizeof words);
      const uint64_t keep = (uint64_t{1} << (size % 8 * 8)) - 1;
      words[0] &= size < 8 ? keep : ~uint64_t{0};
      words[1] &= size < 8 ? 0 : keep;
    }
    std::string_view word() const {  // of a key without a count
      return {reinterpret_cast<const char*>(words), (words[Words - 1] >> 56) - 1};
    }
    size_t hash() const {
      uint64_t h = 0;
      for (const uint64_t word : words) h = (h ^ h >> 32 ^ word) * 0x9e3779b97f4a7c15ull;
      return static_cast<size_t>(h >> 32);
    }
    bool same_word(const Key& entry) const {
      uint64_t differs = (words[Words - 1] ^ entry.words[Words - 1]) & kWithoutCount;
      for (size_t i = 0; i + 1 < Words; ++i) differs |= words[i] ^ entry.words[i];
      return differs == 0;
    }
  };

  template <size_t Words, size_t Tokens, size_t Sets>
  class Table {
   public:
    static constexpr size_t kMaximumSize = Words == 2 ? 15 : 30;  // bytes of a word

    void prefetch(const Key<Words>& key) { __builtin_prefetch(set_of(key)); }
    bool find(std::string_view word, std::vector<int32_t>& ids) {
      return find(Key<Words>(word), ids);
    }
    bool find(const Key<Words>& key, std::vector<int32_t>& ids) {
      Entry* set = set_of(key);
      if (!key.same_word(set[0].key)) {
        if (!key.same_word(set[1].key)) return false;
        std::swap(set[0], set[1]);
      }
      const size_t count = set[0].key.words[Words - 1] >> Key<Words>::kCountShift;
      if (count == 1) {
        ids.push_back(set[0].ids[0]);
      } else {
        ids.insert(ids.end(), set[0].ids, set[0].ids + count);
      }
      return true;
    }
    void put(std::string_view word, std::span<const int32_t> ids) { put(Key<Words>(word), ids); }
    void put(const Key<Words>& key, std::span<const int32_t> ids) {
      if (ids.size() > Tokens) return;
      Entry* set = set_of(key);
      set[1] = set[0];
      set[0].key = key;
      set[0].key.words[Words - 1] |= static_cast<uint64_t>(ids.size()) << Key<Words>::kCountShift;
      for (size_t i = 0; i < ids.size(); ++i) set[0].ids[i] = ids[i];
    }

   private:
    struct alignas(Words * 16) Entry {
      Key<Words> key;
      int32_t ids[Tokens];
    };
    struct Free {
      void operator()(void* memory) const { std::free(memory); }
    };
    static constexpr size_t kLine = 128;

    Entry* set_of(const Key<Words>& key) { return sets_ + (key.hash() & (Sets - 1)) * 2; }

    // Zeroed memory, which the system allocates page by page when it is first touched.
    std::unique_ptr<void, Free> memory_{std::calloc(Sets * 2 * sizeof(Entry) + kLine, 1)};
    Entry* sets_ = aligned(memory_.get());
    static Entry* aligned(void* memory) {
      if (!memory) throw std::bad_alloc();
      const auto address = (reinterpret_cast<uintptr_t>(memory) + kLine - 1) / kLine * kLine;
      return reinterpret_cast<Entry*>(address);
    }
  };
  using Short = Table<2, 4, size_t{1} << 15>;
  using Long = Table<4, 7, size_t{1} << 13>;

  static constexpr size_t kMaximumWaiting = 16;
  Key<2> waiting_words_[kMaximumWaiting];
  size_t waiting_ = 0;
  Short short_;
  Long long_;
};

}  // namespace megatron::tokenizers
