// UTF-8: validity, characters (code points), and lossy reading of invalid bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megatron {

// Offset of the first byte that is not part of valid UTF-8 (surrogates, overlong forms and values
// above U+10FFFF are invalid); text.size() if there is none.
size_t first_invalid_byte(std::string_view text);
bool is_utf8(std::string_view text);

// Throws Error naming the offset and the byte.
void check_utf8(std::string_view text, std::string_view what);

// Appends `bytes`, with one U+FFFD for each maximal invalid part (Unicode 15, section 3.9,
// "substitution of maximal subparts"). If `last` is false, an incomplete character at the end is
// not consumed. Returns the number of bytes consumed.
size_t append_lossy(std::string_view bytes, bool last, std::string& out);

// True if a byte continues the previous character.
inline bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

// Number of bytes of the character that starts with `lead`, in valid UTF-8.
inline int character_size(char lead) {
  const auto b = static_cast<unsigned char>(lead);
  return b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

// Character of valid UTF-8 that starts at `position`, and start of the one that ends before it.
char32_t character_at(std::string_view text, size_t position);
size_t character_start_before(std::string_view text, size_t position);

// Returns the character at `position` and moves `position` after it; U+FFFD for each maximal
// invalid part.
char32_t next_character(std::string_view text, size_t& position);

int64_t count_characters(std::string_view text);
// Byte offset of character number `index`; text.size() if there are fewer.
size_t character_offset(std::string_view text, int64_t index);
// Longest prefix of at most `most` bytes that does not split a character.
std::string_view whole_characters(std::string_view text, size_t most);

void append_character(char32_t c, std::string& out);

// JSON escape of a character: "\u00e9"; above U+FFFF two of them, a surrogate pair.
std::string json_escape(char32_t c);
// Character encoded by two surrogates; none if they are not a pair.
std::optional<char32_t> joined_surrogates(char32_t high, char32_t low);

}  // namespace megatron
