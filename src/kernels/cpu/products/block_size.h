// The largest block of a product in words and panels, by the processor's caches.
#pragma once

#include <cstdint>

#include "kernels/cpu/products/tiles.h"

namespace megatron::kernels::cpu {

struct BlockSize {
  int64_t m, n;
};

// Words of k in a slice of a block.
inline constexpr int64_t kSliceWords = 128;
// Upper bounds for the blocks of any processor.
inline constexpr int64_t kMaxRows = 1024, kMaxColumns = 768;

// cache: bytes of the second-level cache. A slice of b in panels takes 3/8 of it, or less: rows of
// a and of sums pass through the rest. AMX is done with a slice so soon that its sums have to lie
// in the second-level cache too, those of two threads that share one.
BlockSize largest_block(WordKind kind, int64_t cache);

// In bytes; where the operating system does not say it: 1 MiB.
int64_t second_level_cache();

}  // namespace megatron::kernels::cpu
