// What a tokenizer file may cost: limits that depend on sizes alone, so that a file which was made
// to do harm, or is damaged, is an error instead of endless work.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/json.h"

namespace megatron::tokenizers {

// Throws Error naming `part` where a text of `before` bytes has become `bytes`: more than 32 times
// as many and 64 KiB. The most that Unicode's normal forms need is 18 times.
void check_growth(size_t bytes, size_t before, std::string_view part);

// Throws Error naming `part` ("normalizer", ...) where there are more than 64 components in it, or
// Sequences more than 16 levels deep.
void check_components(const Json& settings, std::string_view part);

// Of a token that is looked for at each place of a text.
inline constexpr size_t kLongestToken = 8192;

}  // namespace megatron::tokenizers
