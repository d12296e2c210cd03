// Added tokens with the ids that Hugging Face's tokenizers give them.
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
  // A token of the vocabulary keeps its id; a new one gets the next behind the vocabulary and the
  // tokens before. A token that is there already takes over the new one's properties, but stays
  // special. An empty one is left out. token.id: of its file; -1 where it has none. Throws Error
  // where the id belongs to another token, which needs a vocabulary with holes.
  void add(AddedToken token);

  // By id. A warning names tokens whose id is not the one of their file.
  std::vector<AddedToken> take();

 private:
  int64_t new_id(const AddedToken& token) const;

  const Vocabulary& vocabulary_;
  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> places_;  // in tokens_, by content
  int64_t largest_ = -1;                            // id
  std::string moved_;                               // what is said of the first with another id
  std::unordered_set<std::string> all_moved_;       // their contents
};

}  // namespace megatron::tokenizers
