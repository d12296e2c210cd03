// AMX instructions for tiles of bf16 (Intel, Architectures Software Developer's Manual, volume 1,
// chapter 18). They are written in assembly because some compiler intrinsics do not declare that
// they read memory.
#pragma once

#include <cstdint>

namespace megatron::kernels::cpu::amx {

// A tile has up to 16 rows of 64 bytes.
inline constexpr int64_t kRows = 16, kRowWords = 16;

// Operand of LDTILECFG: number of rows and bytes per row for each of the eight tiles. A tile
// without rows must not be used.
struct alignas(64) Shapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t tile_rows, int64_t words) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(tile_rows == 0 ? 0 : words * 4);
  }
};
static_assert(sizeof(Shapes) == 64);

// Configures the tiles and sets them to zero.
inline void configure(const Shapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
// Releases the tiles. Tiles in use are saved at every context switch.
inline void release() { asm volatile("tilerelease"); }

template <int kTile>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
inline void load(const void* from, int64_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(stride_bytes), "i"(kTile)
               : "memory");
}
// The same with a hint that keeps the lines out of the L1 cache. A tile that is used once then
// displaces nothing there.
template <int kTile>
inline void load_once(const void* from, int64_t stride_bytes) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(stride_bytes), "i"(kTile)
               : "memory");
}
template <int kTile>
inline void store(void* to, int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(to), "r"(stride_bytes), "i"(kTile)
               : "memory");
}
// c += a b: row i of a has words of two bf16, row l of b the words l of columns. Even and odd
// elements are summed separately over all words of a's row, starting from 0; both sums are added,
// then added to c. Products are fused with f32 sums, and subnormal numbers count as zero.
template <int kC, int kA, int kB>
inline void multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

}  // namespace megatron::kernels::cpu::amx
