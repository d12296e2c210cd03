// Parts of a tensor as it lies on disk, without telling whose.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "checkpoint/tensor_blocks.h"

namespace megatron::checkpoint {

// `count` runs of `run` elements, whose beginnings are `stride` apart; one run: stride == run.
struct Region {
  int64_t begin = 0, count = 1, stride = 0, run = 0;

  int64_t elements() const { return count * run; }
  auto operator<=>(const Region&) const = default;
};

// The stored side of a block; equal elements in equal order give equal regions.
Region region_of(const Block& block);

// A region that `holders` ranks hold.
struct HeldRegion {
  Region region;
  int64_t holders = 1;
};

// How often the elements of a tensor are held. Ranks that hold the same may cut it differently, but
// together they hold each element equally often.
struct Coverage {
  struct Stretch {
    int64_t begin = 0, end = 0, times = 0;
  };
  Stretch least, most;  // the first of each

  bool complete() const { return least.times > 0; }
  bool even() const { return complete() && least.times == most.times; }
  // What is missing or double: "elements [4, 8) of its 12 are held by no rank".
  std::string text(int64_t elements) const;
};
// A tensor without elements is held once. Time: that of sorting the runs, or those of one row where
// the regions are columns of one matrix.
Coverage coverage(std::span<const HeldRegion> regions, int64_t elements);

// A set of elements.
class Intervals {
 public:
  // Whether some element of the region is not in the set; puts all of it in.
  bool add(const Region& region);

 private:
  bool contains(int64_t begin, int64_t end) const;
  void insert(int64_t begin, int64_t end);

  std::map<int64_t, int64_t> ends_;  // by beginning; disjoint, not touching
};

}  // namespace megatron::checkpoint
