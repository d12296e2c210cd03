// Which tokens end documents, begin and end sequences, and pad.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "tokenizers/codec.h"

namespace megatron::tokenizers {

struct SpecialTokens {
  std::optional<int32_t> bos, eos, pad, eod;
  Json config;  // tokenizer_config.json as it was read; null where there is none
};

// From the files in `directory` ("" for none), then from the usual names; see Tokenizer::load.
// Throws Error naming the file where one is malformed or names a token that the vocabulary lacks.
SpecialTokens find_special_tokens(const std::string& directory, const Codec& codec);

// tokenizer_config.json: what was read, or the least that transformers wants.
Json write_tokenizer_config(const SpecialTokens& tokens, const Codec& codec);

}  // namespace megatron::tokenizers
