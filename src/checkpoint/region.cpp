#include "checkpoint/region.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace megatron::checkpoint {
namespace {

using Stretch = Coverage::Stretch;

// Extends the stretch by an adjacent one that is held equally often.
bool extend(Stretch& stretch, const Stretch& next) {
  const bool follows = stretch.times == next.times && stretch.end == next.begin;
  if (follows) stretch.end = next.end;
  return follows;
}

// If all regions are columns of one matrix, returns the regions of its first row, which represents
// all rows.
std::vector<HeldRegion> first_row(std::span<const HeldRegion> regions, int64_t elements) {
  std::vector<HeldRegion> row;
  const Region& first = regions.front().region;
  for (const auto& [region, holders] : regions) {
    const bool columns = region.count == first.count && region.stride == first.stride &&
                         region.begin + region.run <= region.stride &&
                         region.count * region.stride == elements;
    if (!columns) return {};
    row.push_back({{region.begin, 1, region.run, region.run}, holders});
  }
  return row;
}

}  // namespace

Region region_of(const Block& block) {
  if (block.rows == 1 || block.stored.row == block.columns)
    return {block.stored.begin, 1, block.elements(), block.elements()};
  return {block.stored.begin, block.rows, block.stored.row, block.columns};
}

std::string Coverage::text(int64_t elements) const {
  if (!complete())
    return fmt::format("no rank holds elements [{}, {}) of its {}", least.begin, least.end,
                       elements);
  return fmt::format("elements [{}, {}) of its {} are held {} times, and others {}", most.begin,
                     most.end, elements, most.times,
                     least.times == 1 ? "once" : fmt::format("{} times", least.times));
}

Coverage coverage(std::span<const HeldRegion> regions, int64_t elements) {
  if (elements == 0) return {{0, 0, 1}, {0, 0, 1}};
  if (!regions.empty() && regions.front().region.count > 1) {
    const std::vector<HeldRegion> row = first_row(regions, elements);
    if (!row.empty()) {
      const Coverage of_row = coverage(row, regions.front().region.stride);
      if (of_row.even())
        return {{0, elements, of_row.most.times}, {0, elements, of_row.most.times}};
    }
  }
  // Position and change of the count.
  std::vector<std::pair<int64_t, int64_t>> changes = {{0, 0}, {elements, 0}};
  for (const auto& [region, holders] : regions) {
    for (int64_t i = 0; i < region.count && region.run > 0; ++i) {
      const int64_t begin = region.begin + i * region.stride;
      changes.emplace_back(begin, holders);
      changes.emplace_back(begin + region.run, -holders);
    }
  }
  std::sort(changes.begin(), changes.end());
  Coverage found{{0, 0, INT64_MAX}, {0, 0, -1}};
  int64_t times = 0;
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    times += changes[i].second;
    const Stretch stretch{changes[i].first, changes[i + 1].first, times};
    if (stretch.begin == stretch.end) continue;
    if (times < found.least.times) found.least = stretch;
    else extend(found.least, stretch);
    if (times > found.most.times) found.most = stretch;
    else extend(found.most, stretch);
  }
  return found;
}

bool Intervals::contains(int64_t begin, int64_t end) const {
  auto after = ends_.upper_bound(begin);
  return after != ends_.begin() && std::prev(after)->second >= end;
}

void Intervals::insert(int64_t begin, int64_t end) {
  auto at = ends_.upper_bound(begin);
  if (at != ends_.begin() && std::prev(at)->second >= begin) --at;
  while (at != ends_.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = ends_.erase(at);
  }
  ends_.emplace(begin, end);
}

bool Intervals::add(const Region& region) {
  bool is_new = false;
  for (int64_t i = 0; i < region.count; ++i) {
    const int64_t begin = region.begin + i * region.stride;
    if (region.run == 0 || contains(begin, begin + region.run)) continue;
    is_new = true;
    insert(begin, begin + region.run);
  }
  return is_new;
}

}  // namespace megatron::checkpoint
