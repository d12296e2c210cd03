// Divides one source into train, valid and test: "969,30,1".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace megatron::data {

enum class Split { train, valid, test };
std::string_view name(Split split);

struct SplitShare {
  double begin = 0, end = 1;  // cumulative shares, in [0, 1]
  bool operator==(const SplitShare&) const = default;
};
using SplitMatrix = std::array<std::optional<SplitShare>, 3>;

// One to three numbers, separated by anything except letters and signs; missing ones are 0; divided
// by their sum. A split with weight 0 has no share. Throws Error for more numbers, none, or a sum
// of 0.
SplitMatrix parse_split(std::string_view text);

// Sequences [first, second) of `count`: share times count, rounded to nearest, halves to even.
std::pair<int64_t, int64_t> split_range(const SplitShare& share, int64_t count);

}  // namespace megatron::data
