// UTF-8: validity, characters (code points), and the lossy reading of broken bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megatron {

// Offset of the first byte that is no part of valid UTF-8 (surrogates, overlong forms and values
// above U+10FFFF are not valid); text.size() when there is none.
size_t first_invalid_byte(std::string_view text);
bool is_utf8(std::string_view text);

// Throws Error naming the offset and the byte.
void check_utf8(std::string_view text, std::string_view what);

// Appends `bytes`, with one U+FFFD for each maximal broken part (Unicode 15, section 3.9,
// "substitution of maximal subparts"). When `last` is false, an incomplete character at the end is
// left alone. Returns the bytes consumed.
size_t append_lossy(std::string_view bytes, bool last, std::string& out);

// Whether a byte belongs to the character before it.
inline bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

// Bytes of the character that starts with `lead`, in valid UTF-8.
inline int character_size(char lead) {
  const auto b = static_cast<unsigned char>(lead);
  return b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

// The character of valid UTF-8 that starts at `position`, and the one that ends before it.
char32_t character_at(std::string_view text, size_t position);
size_t character_start_before(std::string_view text, size_t position);

// The character at `position`, which moves behind it; U+FFFD for each maximal broken part.
char32_t next_character(std::string_view text, size_t& position);

int64_t count_characters(std::string_view text);
// Byte at which character number `index` begins; text.size() when there are not as many.
size_t character_offset(std::string_view text, int64_t index);
// The longest beginning of at most `most` bytes that cuts no character.
std::string_view whole_characters(std::string_view text, size_t most);

void append_character(char32_t c, std::string& out);

// JSON's escape of a character: "\u00e9"; two of them, a surrogate pair, above U+FFFF.
std::string json_escape(char32_t c);
// The character that two surrogates are, where they are a pair.
std::optional<char32_t> joined_surrogates(char32_t high, char32_t low);

}  // namespace megatron
