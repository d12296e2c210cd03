// A trie that finds all tokens of a vocabulary that are prefixes of a text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizers/vocabulary.h"

namespace megatron::tokenizers {

class PrefixTrie {
 public:
  explicit PrefixTrie(const Vocabulary& vocabulary);

  // Calls found(id, size) for each token that is a prefix of `text`, shortest first.
  template <class F>
  void for_each_prefix(std::string_view text, F&& found) const {
    walk(text.size(), [&](size_t i) { return text[i]; }, found);
  }
  // The same for the concatenation of `before` and `text`. Returns the number of bytes read.
  template <class F>
  size_t for_each_prefix(std::string_view before, std::string_view text, F&& found) const {
    return walk(
        before.size() + text.size(),
        [&](size_t i) { return i < before.size() ? before[i] : text[i - before.size()]; }, found);
  }

 private:
  template <class Byte, class F>
  size_t walk(size_t count, Byte&& byte, F&& found) const {
    if (count == 0) return 0;
    int32_t node = first_[static_cast<unsigned char>(byte(0))];
    size_t size = 1;
    for (; node >= 0; ++size) {
      const Node& here = nodes_[static_cast<size_t>(node)];
      if (here.id >= 0) found(here.id, size);
      if (size == count) break;
      node = child(here, static_cast<unsigned char>(byte(size)));
    }
    return size;
  }

  struct Node {
    int32_t children = 0;  // index of the first child; children are adjacent, ordered by byte
    int32_t id = -1;
    uint16_t child_count = 0;
    unsigned char byte = 0;
  };
  int32_t child(const Node& node, unsigned char byte) const;

  std::vector<Node> nodes_;
  std::array<int32_t, 256> first_;  // node of each first byte
};

}  // namespace megatron::tokenizers
