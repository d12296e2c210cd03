// Characters as bytes: in plain text, and within the quotes of a JSON string.
#pragma once

#include "inference/constraint/network.h"
#include "tokenizers/unicode/character_set.h"

namespace megatron::inference {

enum class Spelling : uint8_t {
  utf8,
  // Between the quotes of a JSON string, each character in one way: \" \\ \b \f \n \r \t, \u00xx
  // for other control characters, and itself.
  json,
};

// One character of `set`; surrogates are none.
void add_characters(Network& network, int32_t from, int32_t to, const tokenizers::CharacterSet& set,
                    Spelling spelling);

}  // namespace megatron::inference
