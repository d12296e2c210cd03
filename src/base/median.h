#pragma once

#include <algorithm>
#include <vector>

namespace megatron {

// The middle value, of an even number the lower of the two. There is at least one.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace megatron
