// SentencePiece's precompiled character map (Kudo and Richardson, 2018): a trie as a double array
// (Yata's Darts-clone), and the replacements one after the other.
//   u32 size of the array in bytes; u32 units; the replacements, each ended by a zero byte
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::tokenizers {

class CharacterMap {
 public:
  // Throws Error on base64 and on sizes that do not fit, and on replacements that are not UTF-8.
  explicit CharacterMap(std::string_view base64);

  // Returns the replacement of the shortest prefix of `key` that has one; valid while the map
  // lives. Throws Error if the map points outside itself.
  std::optional<std::string_view> find_shortest(std::string_view key) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace megatron::tokenizers
