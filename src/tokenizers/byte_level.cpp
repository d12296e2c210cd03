#include "tokenizers/byte_level.h"

#include <fmt/core.h>

#include <charconv>
#include <vector>

#include "base/utf8.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kLetterLimit = 0x144;  // one past the largest letter

constexpr std::array<int16_t, kLetterLimit> make_letter_bytes() {
  std::array<int16_t, kLetterLimit> bytes{};
  bytes.fill(-1);
  for (size_t b = 0; b < 256; ++b) bytes[kByteLetters[b]] = static_cast<int16_t>(b);
  return bytes;
}
constexpr std::array<int16_t, kLetterLimit> kLetterBytes = make_letter_bytes();

}  // namespace

int byte_of_letter(char32_t letter) { return letter < kLetterLimit ? kLetterBytes[letter] : -1; }

std::string letters_of_bytes(std::string_view bytes) {
  std::string letters;
  for (const char c : bytes) append_character(kByteLetters[static_cast<unsigned char>(c)], letters);
  return letters;
}

bool append_bytes_of_letters(std::string_view letters, std::string& bytes) {
  const size_t before = bytes.size();
  for (size_t i = 0; i < letters.size(); i += static_cast<size_t>(character_size(letters[i]))) {
    const int byte = byte_of_letter(character_at(letters, i));
    if (byte < 0) {
      bytes.resize(before);
      return false;
    }
    bytes.push_back(static_cast<char>(byte));
  }
  return true;
}

void letters_to_bytes(std::string_view bytes, std::span<Range> ranges) {
  std::vector<uint32_t> byte_of;  // byte of each letter
  for (uint32_t i = 0; i < bytes.size(); ++i) {
    const char32_t letter = kByteLetters[static_cast<unsigned char>(bytes[i])];
    byte_of.insert(byte_of.end(), letter < 0x80 ? 1 : 2, i);
  }
  for (Range& range : ranges) {
    if (range.begin == range.end || range.end > byte_of.size()) {
      range = {};
    } else {
      range = {byte_of[range.begin], byte_of[range.end - 1] + 1};
    }
  }
}

std::string byte_token(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return error == std::errc() && end == token.data() + 5 ? byte : -1;
}

}  // namespace megatron::tokenizers
