// The byte-level alphabet of GPT-2 (Radford et al., 2019): each byte maps to a printable letter, so
// that any text can be written with 256 letters. Bytes 21-7E, A1-AC and AE-FF are their own
// letters; the others map to U+0100, U+0101 ... in order.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "tokenizers/text.h"

namespace megatron::tokenizers {

constexpr std::array<char32_t, 256> make_byte_letters() {
  std::array<char32_t, 256> letters{};
  char32_t next = 0x100;
  for (char32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    letters[b] = printable ? b : next++;
  }
  return letters;
}
inline constexpr std::array<char32_t, 256> kByteLetters = make_byte_letters();

// Returns the byte of a letter, or -1 if it is not one of the 256 letters.
int byte_of_letter(char32_t letter);

std::string letters_of_bytes(std::string_view bytes);

// Appends the bytes of `letters` (valid UTF-8). Returns false, with nothing appended, if a letter
// is not in the alphabet.
bool append_bytes_of_letters(std::string_view letters, std::string& bytes);

// Converts byte ranges of letters_of_bytes(bytes) to ranges of `bytes`.
void letters_to_bytes(std::string_view bytes, std::span<Range> ranges);

// Byte fallback spells a byte as a token of its own: "<0x0A>". -1 for any other token.
std::string byte_token(unsigned char byte);
int byte_of_token(std::string_view token);

}  // namespace megatron::tokenizers
