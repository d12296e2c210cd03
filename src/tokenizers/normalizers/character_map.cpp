#include "tokenizers/normalizers/character_map.h"

#include <array>

#include "base/error.h"
#include "tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

constexpr std::array<int8_t, 256> make_digits() {
  std::array<int8_t, 256> digits{};
  digits.fill(-1);
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kAlphabet.size(); ++i)
    digits[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
  return digits;
}
constexpr std::array<int8_t, 256> kDigits = make_digits();

std::string decode_base64(std::string_view text) {
  MG_CHECK(text.size() % 4 == 0,
           "precompiled_charsmap has {} letters of base64; a multiple of 4 was expected",
           text.size());
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i + padding < text.size(); ++i) {
    const int digit = kDigits[static_cast<unsigned char>(text[i])];
    MG_CHECK(digit >= 0, "precompiled_charsmap: byte 0x{:02x} at {} is no letter of base64",
             static_cast<unsigned char>(text[i]), i);
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 0) bytes.push_back(static_cast<char>(bits >> (6 - i % 4 * 2)));
  }
  return bytes;
}

uint32_t little_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t k = 4; k-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + k]);
  return value;
}

// The fields of a unit.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
size_t value(uint32_t unit) { return unit & 0x7fffffff; }
uint32_t label(uint32_t unit) { return unit & 0x800000ff; }
size_t offset(uint32_t unit) { return size_t{unit >> 10} << ((unit & 0x200) >> 6); }

}  // namespace

CharacterMap::CharacterMap(std::string_view base64) {
  const std::string blob = decode_base64(base64);
  MG_CHECK(blob.size() >= 8, "precompiled_charsmap has {} bytes; a map has at least 8",
           blob.size());
  const size_t size = little_endian(blob, 0);
  MG_CHECK(size % 4 == 0 && size >= 4 && size <= blob.size() - 4,
           "precompiled_charsmap says that its trie has {} bytes; {} are there", size,
           blob.size() - 4);
  units_.reserve(size / 4);
  for (size_t at = 4; at < 4 + size; at += 4) units_.push_back(little_endian(blob, at));
  replacements_ = blob.substr(4 + size);
  check_utf8(replacements_, "the text of precompiled_charsmap");
}

std::optional<std::string_view> CharacterMap::find_shortest(std::string_view key) const {
  size_t node = offset(units_[0]);
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    node ^= byte;
    MG_CHECK(node < units_.size(), "precompiled_charsmap is damaged: node {} of {}", node,
             units_.size());
    const uint32_t unit = units_[node];
    if (label(unit) != byte) break;
    node ^= offset(unit);
    if (!has_leaf(unit)) continue;
    MG_CHECK(node < units_.size(), "precompiled_charsmap is damaged: node {} of {}", node,
             units_.size());
    const std::string_view rest(replacements_);
    const size_t begin = value(units_[node]);
    MG_CHECK(begin <= rest.size() && (begin == rest.size() || (rest[begin] & 0xc0) != 0x80),
             "precompiled_charsmap is damaged: its text has {} bytes, and a replacement is at {}",
             rest.size(), begin);
    return rest.substr(begin, rest.find('\0', begin) - begin);
  }
  return std::nullopt;
}

}  // namespace megatron::tokenizers
