#include "kernels/cpu/products/block_size.h"

#include <unistd.h>

#include <algorithm>

namespace megatron::kernels::cpu {

BlockSize largest_block(WordKind kind, int64_t cache) {
  if (kind == WordKind::bf16_amx) return {kAmxRows, kAmxColumns};
  constexpr int64_t kColumnBytes = kSliceWords * 4, kStep = 6 * kPanel;
  const int64_t columns = cache / 8 * 3 / kColumnBytes / kStep * kStep;
  const int64_t strip = tile_strip(kind);
  return {kMaxRows / strip * strip, std::clamp(columns, kStep, kMaxColumns)};
}

int64_t second_level_cache() {
  static const int64_t bytes = [] {
    constexpr int64_t kUsual = 1 << 20;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    const long known = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return known > 0 ? static_cast<int64_t>(known) : kUsual;
#else
    return kUsual;
#endif
  }();
  return bytes;
}

}  // namespace megatron::kernels::cpu
