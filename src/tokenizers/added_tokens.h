// Finds added tokens in a text: leftmost, then longest. A single_word match with an adjacent word
// character is dropped, and the search continues after it. The search does not skip the white space
// that a token with rstrip takes: a token that begins in it is found, and the two ranges overlap.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "tokenizers/definition.h"
#include "tokenizers/text.h"

namespace megatron::tokenizers {

class AddedTokens {
 public:
  // If two tokens have the same text, the first one wins; an empty text is never found.
  void add(std::string_view text, int32_t id, const AddedToken& token);

  // Calls on_text for each non-empty stretch between tokens and on_token for each token, in order.
  // found: the text that the token replaces, including white space that it takes. find_special: if
  // false, special tokens remain in the stretches.
  void split(TextView text, bool find_special, FunctionRef<void(TextView)> on_text,
             FunctionRef<void(int32_t id, TextView found)> on_token) const;

 private:
  struct Entry {
    int32_t id;
    bool single_word, lstrip, rstrip, special;
  };
  struct Node {
    unsigned char byte = 0;
    int32_t child = -1, sibling = -1, entry = -1;
  };

  int32_t child(int32_t node, unsigned char byte) const;
  // Returns the entry of the longest token at `position` and sets `size`; -1 if there is none.
  int32_t longest_at(std::string_view text, size_t position, size_t& size) const;

  std::vector<Entry> entries_;
  std::vector<Node> nodes_ = std::vector<Node>(1);  // a trie; node 0 is the root
  std::array<bool, 256> starts_{};
};

}  // namespace megatron::tokenizers
