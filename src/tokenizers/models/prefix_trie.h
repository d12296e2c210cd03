// All tokens of a vocabulary that a text begins with.
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

  // Calls found(id, size) for each token at the begin of `text`, the shortest first.
  template <class F>
  void for_each_prefix(std::string_view text, F&& found) const {
    if (text.empty()) return;
    int32_t node = first_[static_cast<unsigned char>(text[0])];
    for (size_t size = 1; node >= 0; ++size) {
      const Node& here = nodes_[static_cast<size_t>(node)];
      if (here.id >= 0) found(here.id, size);
      if (size == text.size()) return;
      node = child(here, static_cast<unsigned char>(text[size]));
    }
  }

 private:
  struct Node {
    int32_t children = 0;  // the first of them; they stand together, by byte
    int32_t id = -1;
    uint16_t child_count = 0;
    unsigned char byte = 0;
  };
  int32_t child(const Node& node, unsigned char byte) const;

  std::vector<Node> nodes_;
  std::array<int32_t, 256> first_;  // nodes of the first byte
};

}  // namespace megatron::tokenizers
