// Limits on the work that a tokenizer file may cause. They depend on sizes alone, so that a
// malicious or damaged file is an error instead of endless work.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/json.h"

namespace megatron::tokenizers {

// Throws Error naming `part` if a text has grown from `before` bytes to more than 32 times as many
// plus 64 KiB. Unicode's normal forms need at most 18 times as many.
void check_growth(size_t bytes, size_t before, std::string_view part);

// Throws Error naming `part` ("normalizer", ...) if it has more than 64 components, or Sequences
// more than 16 levels deep.
void check_components(const Json& settings, std::string_view part);

// Maximum number of bytes of a token that is searched for at every position of a text.
inline constexpr size_t kLongestToken = 8192;

}  // namespace megatron::tokenizers
