// Special tokens: end of document, beginning and end of sequence, padding, and those of encoders.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "tokenizers/codec.h"

namespace megatron::tokenizers {

struct SpecialTokens {
  std::optional<int32_t> bos, eos, pad, eod;
  std::optional<int32_t> cls, sep, mask;  // of encoders such as BERT
  Json config;                            // tokenizer_config.json as read; null if there is none
};

// Finds them in the files of `directory` ("" for none), then by the usual names; see
// Tokenizer::load. Throws Error naming the file if one is malformed or names a token that the
// vocabulary lacks.
SpecialTokens find_special_tokens(const std::string& directory, const Codec& codec);

// Contents of tokenizer_config.json: what was read, or the minimum that transformers requires.
Json write_tokenizer_config(const SpecialTokens& tokens, const Codec& codec);

}  // namespace megatron::tokenizers
