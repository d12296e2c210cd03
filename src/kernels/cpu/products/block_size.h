// Largest block of a product in words and panels, derived from the processor's caches.
#pragma once

#include <cstdint>

#include "kernels/cpu/products/tiles.h"

namespace megatron::kernels::cpu {

struct BlockSize {
  int64_t m, n;
};

// Words of k in one slice of a block.
inline constexpr int64_t kSliceWords = 128;
// Upper bounds of block sizes on any processor.
inline constexpr int64_t kMaxRows = 1024, kMaxColumns = 768;
// Block with AMX, whose columns are packed over more of k (kernels/cpu/products/amx_block.h).
inline constexpr int64_t kAmxRows = 1024, kAmxColumns = 384;

// cache: bytes of the L2 cache. A slice of b in panels occupies at most 3/8 of it; rows of a and of
// sums pass through the rest. All processors with AMX have an L2 cache of 2 MB.
BlockSize largest_block(WordKind kind, int64_t cache);

// Bytes of the L2 cache; 1 MiB if the operating system does not report it.
int64_t second_level_cache();

}  // namespace megatron::kernels::cpu
