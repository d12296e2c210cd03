// The part of trainer_state.json that lists the contents of all other files of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace megatron::checkpoint {

uint64_t checksum(std::span<const std::byte> bytes);  // XXH3, 64 bits
uint64_t checksum(std::string_view text);
std::string hexadecimal(uint64_t sum);  // 16 digits, lower case

// One file, in JSON {"bytes", "xxh3"}, or {"bytes", "header", "tensors": {name: sum}} for a file of
// tensors, whose header is everything before the data.
struct ListedFile {
  std::string name;
  int64_t bytes = 0;
  uint64_t sum = 0;  // checksum of the file, or of its header if it has tensors
  bool has_tensors = false;
  std::vector<std::pair<std::string, uint64_t>> tensors;  // in file order
};

// Returns the text of trainer_state.json: "format" (if `state` has none), the members of `state`,
// "files" and last "xxh3", the checksum of the whole text with zeros in its own place.
std::string seal(const Json& state, std::span<const ListedFile> files);

// Parses an untrusted text: checks format, checksum and every value. Throws Error naming `origin`
// (the file), what was found and what to do.
struct Sealed {
  Json state;
  std::vector<ListedFile> files;
};
Sealed unseal(std::string_view text, const std::string& origin);

// True for a name without folders that is not that of trainer_state.json.
bool is_listable(std::string_view name);

}  // namespace megatron::checkpoint
