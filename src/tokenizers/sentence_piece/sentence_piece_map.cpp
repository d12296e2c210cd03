#include "tokenizers/sentence_piece/sentence_piece_map.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kMaximumReplacement = 1024, kMaximumKeys = 32, kMaximumDepth = 1024;

// A unit of the trie: bits 0-7 and 31 are its label, bit 8 tells whether a key ends below it, the
// others are the offset of its children; if bit 31 is set, it is a value.
class Trie {
 public:
  Trie(std::string_view bytes, std::string_view replacements)
      : units_(bytes.size() / 4), keys_(bytes.size() / 4, kUnseen), replacements_(replacements) {
    std::memcpy(units_.data(), bytes.data(), units_.size() * 4);
  }

  size_t check() {
    keys_below(0, 0);
    return longest_;
  }

 private:
  static constexpr int8_t kUnseen = -1, kOpen = -2;

  // Maximum number of keys that end on one path from the node at `place`; each node is counted
  // once.
  int8_t keys_below(size_t place, size_t depth) {
    MG_CHECK(depth <= kMaximumDepth, "the normalization map has a key of over {} bytes",
             kMaximumDepth);
    MG_CHECK(keys_[place] != kOpen, "the normalization map's trie has a cycle");
    if (keys_[place] != kUnseen) return keys_[place];
    keys_[place] = kOpen;
    const uint32_t unit = units_[place];
    const size_t children = place ^ static_cast<size_t>(unit >> 10) << ((unit & 0x200) >> 6);
    MG_CHECK((children | 0xff) < units_.size(),
             "the normalization map's trie points at unit {}, but has only {} units",
             children | 0xff, units_.size());
    const bool ends_key = (unit & 0x100) != 0;
    if (ends_key) check_replacement(units_[children] & 0x7fffffff);
    int8_t most = 0;
    for (size_t byte = 0; byte < 256; ++byte) {
      if ((units_[children ^ byte] & 0x800000ff) == byte)
        most = std::max(most, keys_below(children ^ byte, depth + 1));
    }
    // A key that ends at the root is empty and never found.
    most = static_cast<int8_t>(most + (ends_key && place != 0 ? 1 : 0));
    MG_CHECK(static_cast<size_t>(most) <= kMaximumKeys,
             "the normalization map has over {} keys, each a prefix of the next", kMaximumKeys);
    return keys_[place] = most;
  }

  void check_replacement(size_t begin) {
    MG_CHECK(begin < replacements_.size(),
             "the normalization map's trie points at byte {} of {} replacement bytes", begin,
             replacements_.size());
    const size_t size = replacements_.find('\0', begin) - begin;
    MG_CHECK(size <= kMaximumReplacement,
             "the normalization map has a replacement of {} bytes; the limit is {}", size,
             kMaximumReplacement);
    check_utf8(replacements_.substr(begin, size), "a replacement of the normalization map");
    longest_ = std::max(longest_, size);
  }

  std::vector<uint32_t> units_;
  std::vector<int8_t> keys_;  // by position: cached keys_below
  std::string_view replacements_;
  size_t longest_ = 0;
};

}  // namespace

size_t check_normalization_map(std::string_view map) {
  if (map.empty()) return 0;
  uint32_t size = 0;
  MG_CHECK(map.size() > 4, "the normalization map has {} bytes; it is truncated", map.size());
  std::memcpy(&size, map.data(), 4);
  map.remove_prefix(4);
  MG_CHECK(size % 4 == 0 && size >= 1024 && size < map.size(),
           "the normalization map's trie has {} bytes of {}; expected a multiple of 4, at least "
           "1024 and fewer than the whole map",
           size, map.size());
  MG_CHECK(map.back() == '\0', "the normalization map's last replacement is not terminated");
  return Trie(map.substr(0, size), map.substr(size)).check();
}

}  // namespace megatron::tokenizers
