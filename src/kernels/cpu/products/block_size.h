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

// cache: bytes of the L2 cache. A slice of b in panels occupies at most 3/8 of it; rows of a and of
// sums pass through the rest. With AMX a slice takes so little time that its sums must also fit the
// L2 cache, and so must those of a second thread that shares it.
BlockSize largest_block(WordKind kind, int64_t cache);

// Bytes of the L2 cache; 1 MiB if the operating system does not report it.
int64_t second_level_cache();

}  // namespace megatron::kernels::cpu
