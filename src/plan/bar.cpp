#include "plan/bar.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace megatron::plan {
namespace {

// Number of cells for each size; they sum to `cells`.
std::vector<size_t> cells_of(const std::vector<int64_t>& sizes, int64_t whole, size_t cells) {
  std::vector<size_t> result;
  std::vector<double> rest;
  for (const int64_t size : sizes) {
    const double exact =
        static_cast<double>(size) / static_cast<double>(whole) * static_cast<double>(cells);
    result.push_back(static_cast<size_t>(exact));
    rest.push_back(exact - std::floor(exact));
  }
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return rest[a] > rest[b]; });
  size_t missing =
      cells - std::min(cells, std::accumulate(result.begin(), result.end(), size_t{0}));
  for (size_t i = 0; missing > 0 && i < order.size(); ++i, --missing) ++result[order[i]];
  return result;
}

}  // namespace

std::string stacked_bar(const std::vector<BarPart>& parts, int64_t whole, size_t cells,
                        const std::string& empty) {
  std::vector<int64_t> sizes;
  int64_t rest = whole;
  for (const BarPart& part : parts) {
    sizes.push_back(part.size);
    rest -= part.size;
  }
  MG_ASSERT(rest >= 0);
  sizes.push_back(rest);
  std::string bar;
  const auto draw = [&bar](size_t count, const std::string& mark) {
    for (size_t i = 0; i < count; ++i) bar += mark;
  };
  if (whole == 0) {
    draw(cells, empty);
    return bar;
  }
  const std::vector<size_t> taken = cells_of(sizes, whole, cells);
  for (size_t i = 0; i < parts.size(); ++i) draw(taken[i], parts[i].mark);
  draw(taken.back(), empty);
  return bar;
}

}  // namespace megatron::plan
