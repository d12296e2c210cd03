// A trie of the bytes of a tokenizer's tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inference/constraint/network.h"
#include "tokenizers/tokenizer.h"

namespace megatron::inference {

// Prepared once and shared; immutable. Special tokens, unknown tokens and ids without a token have
// no bytes.
class TokenBytes {
 public:
  // Throws Error for a tokenizer whose texts are not the concatenated bytes of their tokens
  // (WordPiece, WordLevel, CLIP's BPE, plain ids).
  explicit TokenBytes(const tokenizers::Tokenizer& tokenizer);

  // Nodes are in pre-order: a node comes before its children, which are ordered by their bytes.
  struct Node {
    uint32_t end;          // one past the last descendant
    uint32_t depth;        // number of bytes up to this one, inclusive
    uint32_t first_token;  // index in tokens(); its tokens end where the next node's begin
    uint8_t byte;
  };
  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  // Tokens whose last byte is node i.
  std::span<const int32_t> tokens(size_t i) const {
    return std::span(tokens_).subspan(nodes_[i].first_token,
                                      nodes_[i + 1].first_token - nodes_[i].first_token);
  }
  // Tokens of all nodes in [first, last).
  std::span<const int32_t> tokens(size_t first, size_t last) const {
    return std::span(tokens_).subspan(nodes_[first].first_token,
                                      nodes_[last].first_token - nodes_[first].first_token);
  }
  uint32_t longest() const { return longest_; }  // bytes of the longest token

  int32_t size() const { return static_cast<int32_t>(begins_.size()) - 1; }  // vocabulary size
  size_t words() const { return (static_cast<size_t>(size()) + 63) / 64; }   // words of a mask
  std::string_view bytes(int32_t id) const;  // "" if the token has none, or does not exist

  // The bytes that are tokens by themselves.
  const Network::Bytes& single() const { return single_; }
  tokenizers::Joining joining() const { return joining_; }
  // Tokens that do not show all of their bytes at the start of a text, in ascending order.
  std::span<const int32_t> not_first() const { return not_first_; }

 private:
  void build_trie();
  void find_not_first(const tokenizers::Codec& codec);

  tokenizers::Joining joining_;
  std::string texts_;
  std::vector<uint32_t> begins_;  // by id, plus one at the end
  std::vector<Node> nodes_;       // plus one at the end
  std::vector<int32_t> tokens_;
  std::vector<int32_t> not_first_;
  uint32_t longest_ = 0;
  Network::Bytes single_;
};

}  // namespace megatron::inference
