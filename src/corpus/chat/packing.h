// Packs documents of different lengths into rows of a fixed capacity.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::corpus {

enum class Packing : uint8_t { bfd, bfd_split, wrapped };
std::string_view name(Packing packing);
Packing packing_named(const std::string& name);  // throws Error listing the names

// Tokens [begin, begin + length) of a document.
struct PackedPart {
  int64_t document = 0, begin = 0, length = 0;
  bool operator==(const PackedPart&) const = default;
};
using PackedRow = std::vector<PackedPart>;

// Rows of at most `capacity` tokens, with the same contents as in TRL's pack_dataset. Documents are
// packed in groups of 1000 consecutive ones; empty ones are left out.
//   bfd        best fit, longest first; longer documents are cut to the capacity
//   bfd_split  the same, but longer documents are split into pieces of the capacity
//   wrapped    a stream of all tokens of a group, cut every `capacity` tokens
std::vector<PackedRow> pack(std::span<const int64_t> lengths, int64_t capacity, Packing packing);

}  // namespace megatron::corpus
