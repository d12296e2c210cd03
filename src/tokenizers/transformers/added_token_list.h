// Added tokens with the largest ids that Hugging Face's tokenizers give them.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tokenizers/definition.h"

namespace megatron::tokenizers {

class AddedTokenList {
 public:
  // The vocabulary must outlive the list.
  explicit AddedTokenList(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  bool contains(const std::string& content) const { return places_.contains(content); }
  // A token of the vocabulary keeps its id; a new one gets the next id after the vocabulary and the
  // tokens added before. A token that was already added takes over the new properties, but stays
  // special. Empty tokens are left out. token.id: the id in the token's file, or -1. Throws Error
  // if the id belongs to another token, which happens if the vocabulary has holes.
  void add(AddedToken token);

  // Returns the tokens in the order of their ids. Warns of tokens whose id differs from that in
  // their file.
  std::vector<AddedToken> take();

 private:
  int64_t new_id(const AddedToken& token) const;

  const Vocabulary& vocabulary_;
  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> places_;  // indices in tokens_ by content
  int64_t largest_ = -1;                            // largest id
  // Warning text for the first token with another id.
  std::string moved_;
  std::unordered_set<std::string> all_moved_;  // contents of all moved tokens
};

}  // namespace megatron::tokenizers
