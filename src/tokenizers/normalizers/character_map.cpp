#include "tokenizers/normalizers/character_map.h"

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/base64.h"

namespace megatron::tokenizers {
namespace {

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
  std::string blob;
  MG_CHECK(append_base64(base64, blob), "precompiled_charsmap of {} characters is not base64",
           base64.size());
  MG_CHECK(blob.size() >= 8, "precompiled_charsmap has {} bytes; a map has at least 8",
           blob.size());
  const size_t size = little_endian(blob, 0);
  MG_CHECK(size % 4 == 0 && size >= 4 && size <= blob.size() - 4,
           "precompiled_charsmap claims a trie of {} bytes, but has {}", size, blob.size() - 4);
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
             "precompiled_charsmap is damaged: its text has {} bytes, and a replacement is at "
             "{}",
             rest.size(), begin);
    return rest.substr(begin, rest.find('\0', begin) - begin);
  }
  return std::nullopt;
}

}  // namespace megatron::tokenizers
