// UTF-8 as the tokenizers need it: validity, code points, and the lossy reading of broken bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizers/unicode/unicode.h"

namespace megatron::tokenizers {

// Offset of the first byte that is no part of valid UTF-8 (surrogates, overlong forms and values
// above U+10FFFF are not valid); text.size() when there is none.
size_t first_invalid_byte(std::string_view text);

// Throws Error naming the offset and the byte.
void check_utf8(std::string_view text, std::string_view what);

// Appends `bytes`, with one U+FFFD for each maximal broken part (Unicode 15, section 3.9,
// "substitution of maximal subparts"). When `last` is false, an incomplete character at the end is
// left alone. Returns the bytes consumed.
size_t append_lossy(std::string_view bytes, bool last, std::string& out);

// Bytes of the character that starts with `lead`, in valid UTF-8.
inline int character_size(char lead) {
  const auto b = static_cast<unsigned char>(lead);
  return b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

// The character of valid UTF-8 that starts at `position`, and the one that ends before it.
char32_t character_at(std::string_view text, size_t position);
size_t character_start_before(std::string_view text, size_t position);

void append_character(char32_t c, std::string& out);

}  // namespace megatron::tokenizers
