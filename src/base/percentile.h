#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace megatron {

// Of values in ascending order, at least one: the value at place (n - 1) share, between two of them
// on the line through both. share: 0 the smallest, 0.5 the middle, 1 the largest.
inline double percentile(const std::vector<double>& ascending, double share) {
  const double place = share * static_cast<double>(ascending.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, ascending.size() - 1);
  return std::lerp(ascending[low], ascending[high], place - static_cast<double>(low));
}

}  // namespace megatron
