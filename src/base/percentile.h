#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace megatron {

// Percentile of n >= 1 values in ascending order: the value at position (n - 1) * share, linearly
// interpolated. share: 0 is the minimum, 0.5 the median, 1 the maximum.
inline double percentile(const std::vector<double>& ascending, double share) {
  const double place = share * static_cast<double>(ascending.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, ascending.size() - 1);
  return std::lerp(ascending[low], ascending[high], place - static_cast<double>(low));
}

}  // namespace megatron
