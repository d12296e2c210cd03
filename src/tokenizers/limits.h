// Limits on the work that a tokenizer file may cause. They depend on sizes alone, so that a
// malicious or damaged file is an error instead of endless work.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/json.h"

namespace megatron::tokenizers {

// Throws Error naming `part` if a text has grown from `before` bytes to more than 32 times as many
// and 64 KiB. Unicode's normal forms need 18 times at most.
void check_growth(size_t bytes, size_t before, std::string_view part);

// Throws Error naming `part` ("normalizer", ...) if it has more than 64 components, or Sequences
// more than 16 levels deep.
void check_components(const Json& settings, std::string_view part);

// Limit on the bytes of a token that is looked for at each place of a text.
inline constexpr size_t kLongestToken = 8192;

}  // namespace megatron::tokenizers
