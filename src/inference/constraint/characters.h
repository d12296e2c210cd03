// Encodes characters as bytes: in plain text, and within the quotes of a JSON string.
#pragma once

#include "inference/constraint/network.h"
#include "tokenizers/unicode/character_set.h"

namespace megatron::inference {

enum class Spelling : uint8_t {
  utf8,
  // Between the quotes of a JSON string, where each character has one spelling: \" \\ \b \f \n \r
  // \t, \u00xx for other control characters, and itself otherwise.
  json,
};

// Adds one character of `set`, without surrogates.
void add_characters(Network& network, int32_t from, int32_t to, const tokenizers::CharacterSet& set,
                    Spelling spelling);

}  // namespace megatron::inference
