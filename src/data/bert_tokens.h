// The tokens of a vocabulary that masked samples of sentences are made with.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tokenizers/tokenizer.h"

namespace megatron::data {

struct BertTokens {
  int64_t cls = 0, sep = 0;         // before a sample; after each of its parts
  int64_t mask = 0, pad = 0;        // in place of a hidden token; after a sample
  std::optional<int64_t> bos, eos;  // if they are tokens of their own
  std::vector<bool> continues;      // by id: continues a word; its text begins with "##"
  std::vector<bool> special;        // by id: a special token, which no text contains
  std::vector<bool> present;        // by id: false in gaps of the vocabulary

  int64_t vocabulary_size() const { return static_cast<int64_t>(continues.size()); }
  // True if padding cannot be told from a token that has a meaning of its own: beginning or end of
  // sequence, which are cls and sep unless the tokenizer has others.
  bool pad_is_ambiguous() const { return pad == bos.value_or(cls) || pad == eos.value_or(sep); }
};

// Those that the tokenizer has; -1 in place of others.
BertTokens sample_tokens(const tokenizers::Tokenizer& tokenizer);
// The end of sequence stands for a sep that the tokenizer lacks, as in ESM's. Throws Error naming
// those of cls, sep, mask and pad that are missing.
BertTokens bert_tokens(const tokenizers::Tokenizer& tokenizer);

// The id that padding has in Megatron-LM: -1, with a warning, if it is ambiguous and this is not
// allowed (--allow-ambiguous-pad-tokens).
int64_t megatron_pad(const BertTokens& tokens, bool allow_ambiguous);

}  // namespace megatron::data
