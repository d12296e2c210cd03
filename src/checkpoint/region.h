// Parts of a tensor on disk, independent of the ranks that hold them.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "checkpoint/tensor_blocks.h"

namespace megatron::checkpoint {

// `count` runs of `run` elements, which begin `stride` apart; for a single run stride == run.
struct Region {
  int64_t begin = 0, count = 1, stride = 0, run = 0;

  int64_t elements() const { return count * run; }
  auto operator<=>(const Region&) const = default;
};

// Region of a block's stored side; blocks of equal elements in equal order have equal regions.
Region region_of(const Block& block);

// A region that `holders` ranks hold.
struct HeldRegion {
  Region region;
  int64_t holders = 1;
};

// Number of times that each element of a tensor is held. Ranks that hold the same elements may cut
// them differently, but every element must be held equally often in total.
struct Coverage {
  struct Stretch {
    int64_t begin = 0, end = 0, times = 0;
  };
  Stretch least, most;  // the first of each

  bool complete() const { return least.times > 0; }
  bool even() const { return complete() && least.times == most.times; }
  // Describes what is missing or double: "elements [4, 8) of its 12 are held by no rank".
  std::string text(int64_t elements) const;
};
// A tensor without elements is held once. Takes the time of sorting the runs, or those of one row
// if the regions are columns of one matrix.
Coverage coverage(std::span<const HeldRegion> regions, int64_t elements);

// A set of elements.
class Intervals {
 public:
  // Adds the region to the set. Returns true if some element of it was not in the set before.
  bool add(const Region& region);

 private:
  bool contains(int64_t begin, int64_t end) const;
  void insert(int64_t begin, int64_t end);

  std::map<int64_t, int64_t> ends_;  // key: begin; disjoint, not adjacent
};

}  // namespace megatron::checkpoint
