// Data sets of a blend, as written by users.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::data {

constexpr int64_t kMaxBlendedSets = 32766;  // a data set's number is stored in 16 bits

struct BlendList {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // one per prefix; empty: by size

  bool weighted() const { return !weights.empty(); }
};

// An odd number of items are prefixes. An even number are pairs of weight and prefix if the first
// of each pair is a number. If none is, all are prefixes; as in Megatron-LM this also holds if
// numbers occur only before the first item that is not one. Otherwise throws Error naming the item
// that should be a number. Weights must be above 0. flag: source of the list, for messages.
BlendList parse_blend_list(std::span<const std::string> items, std::string_view flag);

// Items of a file, separated by white space (--data-args-path).
BlendList read_blend_list(const std::string& path, std::string_view flag);

// {"train": [items], "valid": [items], "test": [items]}; a split that is null or absent has no data
// (--per-split-data-args-path).
std::array<std::optional<BlendList>, 3> read_split_blend_lists(const std::string& path,
                                                               std::string_view flag);

}  // namespace megatron::data
