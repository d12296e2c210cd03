// Products of matrices that lie in cache as words and panels: c = a b with sums in f32.
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

// c [m,n] = a b + (accumulate ? c : 0), with n a multiple of kPanel and k in words.
//   a: word (i, l) at a[i * a_row + l * a_step]: either way round, so that the transpose of a tile
//   needs no copy. b: word (l, j) at b[j / 32 * panel + l * 32 + j % 32]. c: rows ldc apart.
// Each element is one chain of sums in ascending l, begun at c or 0: f32 sum = fma(a, b, sum);
// pairs as AVX512_BF16 sums them (vdpbf16ps). Its bits depend on no size but k, and k may be cut
// anywhere.
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

// bf16_pair needs native bf16_products().
void tile_product(WordKind kind, const TileProduct& product);

}  // namespace megatron::kernels::cpu
