// Checks the normalization map of a SentencePiece model: a double-array trie (Aoe, 1989; in
// Darts-clone's layout) from byte strings to offsets in a blob of zero-terminated replacements.
#pragma once

#include <cstddef>
#include <string_view>

namespace megatron::tokenizers {

// Throws Error unless every walk through the trie stays inside it, meets at most 32 keys and ends
// at replacements in valid UTF-8 of at most 1024 bytes. Returns the longest replacement's size; 0
// for an empty map.
//
//   bytes 0-3   size of the trie in bytes, little-endian
//   then        the trie: units of 4 bytes
//   the rest    the replacements
size_t check_normalization_map(std::string_view map);

}  // namespace megatron::tokenizers
