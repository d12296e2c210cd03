// Divides groups of rows into tiles of one group each. Only the device knows how many rows a group
// has, so a launch has as many blocks as the worst case has tiles, and each block finds its own
// tile.
#pragma once

#include <algorithm>

#include "kernels/cuda/reduce.h"

namespace megatron::kernels::cuda {

// Most tiles that `rows` rows in `groups` groups can make, including rows that belong to no group.
inline int64_t most_row_tiles(int64_t rows, int64_t groups, int64_t height) {
  return rows / height + std::min(rows, groups + 1);
}

struct RowTile {
  int group;         // `groups` for rows that belong to no group
  int first, count;  // count is 0 if there is no such tile
};

// Tile `number` of the rows [offsets[g], offsets[g+1]) of each group and of the rows from
// offsets[groups] on. All lanes of a warp call this.
__device__ inline RowTile find_row_tile(const int32_t* offsets, int groups, int rows, int height,
                                        int number) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int before = 0;
  for (int base = 0; base <= groups; base += kWarp) {
    const int group = base + lane;
    const int begin = group <= groups ? offsets[group] : rows;
    const int end = group < groups ? offsets[group + 1] : rows;
    const int tiles = (end - begin + height - 1) / height;
    int sum = tiles;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, distance);
      if (lane >= distance) sum += other;
    }
    const unsigned beyond = __ballot_sync(kAllLanes, before + sum > number ? 1 : 0);
    if (beyond == 0) {
      before += __shfl_sync(kAllLanes, sum, kWarp - 1);
      continue;
    }
    const int hit = __ffs(static_cast<int>(beyond)) - 1;
    const int first = begin + (number - (before + sum - tiles)) * height;
    const RowTile tile{group, first, min(height, end - first)};
    return {__shfl_sync(kAllLanes, tile.group, hit), __shfl_sync(kAllLanes, tile.first, hit),
            __shfl_sync(kAllLanes, tile.count, hit)};
  }
  return {groups, rows, 0};
}

}  // namespace megatron::kernels::cuda
