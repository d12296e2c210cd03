// Products of matrices that are in cache as words and panels: c = a b with f32 sums.
#pragma once

#include <cstdint>

#include "base/divide.h"

namespace megatron::kernels::cpu {

// The sum runs over 32-bit words. A word is one f32, or a pair of bf16 (elements 2 l and 2 l + 1;
// an odd last one is paired with 0) for AVX512_BF16 or AMX.
enum class WordKind { f32, bf16_pair, bf16_amx };
inline bool is_paired(WordKind kind) { return kind != WordKind::f32; }
inline int64_t words(WordKind kind, int64_t elements) {
  return is_paired(kind) ? (elements + 1) / 2 : elements;
}

// k may be split at multiples of this number of elements, for every kind.
inline constexpr int64_t kChainCut = 32;

// Columns per panel of the second factor.
inline constexpr int64_t kPanel = 32;

// c [m,n] = a b + (accumulate ? c : 0), with n a multiple of kPanel and k in words, at least 1.
//   a: word (i, l) at a[i * a_row + l * a_step], in either order, so that the caller need not copy
//   the transpose of a tile (bf16_amx does it here: kernels/cpu/products/amx_products.h).
//   b: word (l, j) at b[j / 32 * panel + l * 32 + j % 32]. c: rows ldc apart.
// Each element is one chain of sums in ascending l, begun at c or 0:
//   f32: sum = fma(a, b, sum);
//   bf16_pair: as AVX512_BF16 sums (vdpbf16ps), the odd element of a word, then the even one;
//   bf16_amx: as AMX sums (tdpbf16ps), of 16 words the even elements and the odd ones, each a chain
//   begun at 0; then sum += even + odd. The last 16 may be fewer.
// Pairs take subnormal numbers for zero. An element's bits depend on no size but k, and k may be
// cut anywhere, for bf16_amx at multiples of kChainCut elements.
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

// The processor must support the kind (kernels/cpu/products/bf16_products.h).
void tile_product(WordKind kind, const TileProduct& product);
// Rows of the first factor that it processes at a time, except for a shorter remainder.
int64_t tile_strip(WordKind kind);
// Instruction set that computes its f32 sums.
enum class TileSet { avx512, avx2, other };
TileSet tile_set();

}  // namespace megatron::kernels::cpu
