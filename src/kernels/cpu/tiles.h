// Products of small matrices that lie in cache, for attention: c = a b with sums in f32.
#pragma once

#include <cstdint>

namespace megatron::kernels::cpu {

// The sum runs over 32-bit words: an f32 each, or a pair of bf16 (elements 2 l and 2 l + 1; an odd
// last one is paired with 0).
enum class WordKind { f32, bf16_pair };
inline int64_t words(WordKind kind, int64_t elements) {
  return kind == WordKind::f32 ? elements : (elements + 1) / 2;
}

// The second factor lies in panels of this many columns.
inline constexpr int64_t kPanel = 32;
inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// c [m,n] = a b + (accumulate ? c : 0), with m a multiple of kTileRows, n of kPanel and k in words.
//   a: word (i, l) at a[i * a_row + l * a_step]: either way round, so that the transpose of a tile
//   needs no copy. b: word (l, j) at b[j / 32 * panel + l * 32 + j % 32]. c: rows ldc apart.
// Each element is one chain of sums in ascending l.
struct TileProduct {
  int64_t m, n, k;
  const uint32_t* a;
  int64_t a_row, a_step;
  const uint32_t* b;
  int64_t panel;
  float* c;
  int64_t ldc;
  bool accumulate;
};
inline constexpr int64_t kTileRows = 8;

// bf16_pair needs native bf16_products().
void tile_product(WordKind kind, const TileProduct& product);

}  // namespace megatron::kernels::cpu
