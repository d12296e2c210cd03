#pragma once

#include <algorithm>
#include <vector>

namespace megatron {

// Median; for an even number of values the lower of the two middle ones. Requires at least one
// value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace megatron
