// Transposes sixteen vectors of sixteen words with AVX-512.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>

namespace megatron::kernels::cpu::avx512 {

using Vector = int32_t __attribute__((vector_size(64)));

// Interleaves elements, or pairs of them, of the lower or upper half of each 128 bits.
template <int kHigh>
[[gnu::target("avx512f")]] inline Vector interleave(Vector a, Vector b) {
  constexpr int k = 2 * kHigh;
  return __builtin_shufflevector(a, b, k, k + 16, k + 1, k + 17, k + 4, k + 20, k + 5, k + 21,
                                 k + 8, k + 24, k + 9, k + 25, k + 12, k + 28, k + 13, k + 29);
}
using Pairs = int64_t __attribute__((vector_size(64)));
template <int k>
[[gnu::target("avx512f")]] inline Vector interleave_pairs(Vector a, Vector b) {
  return reinterpret_cast<Vector>(
      __builtin_shufflevector(reinterpret_cast<Pairs>(a), reinterpret_cast<Pairs>(b), k, k + 8,
                              k + 2, k + 10, k + 4, k + 12, k + 6, k + 14));
}
// The even or the odd 128-bit lanes of a, then those of b.
template <int kOdd>
[[gnu::target("avx512f")]] inline Vector every_other_lane(Vector a, Vector b) {
  constexpr int k = 4 * kOdd;
  return __builtin_shufflevector(a, b, k, k + 1, k + 2, k + 3, k + 8, k + 9, k + 10, k + 11, k + 16,
                                 k + 17, k + 18, k + 19, k + 24, k + 25, k + 26, k + 27);
}

// Transposes 16 rows of 16 words: lane r of t[l] becomes word l of row r.
[[gnu::target("avx512f"), gnu::always_inline]] inline void transpose16(Vector (&t)[16]) {
  Vector pairs[16], fours[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = interleave<0>(t[i], t[i + 1]);
    pairs[i + 1] = interleave<1>(t[i], t[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    fours[i] = interleave_pairs<0>(pairs[i], pairs[i + 2]);
    fours[i + 1] = interleave_pairs<1>(pairs[i], pairs[i + 2]);
    fours[i + 2] = interleave_pairs<0>(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = interleave_pairs<1>(pairs[i + 1], pairs[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const Vector a = every_other_lane<0>(fours[j], fours[j + 4]);
    const Vector b = every_other_lane<1>(fours[j], fours[j + 4]);
    const Vector c = every_other_lane<0>(fours[j + 8], fours[j + 12]);
    const Vector d = every_other_lane<1>(fours[j + 8], fours[j + 12]);
    t[j] = every_other_lane<0>(a, c);
    t[j + 8] = every_other_lane<1>(a, c);
    t[j + 4] = every_other_lane<0>(b, d);
    t[j + 12] = every_other_lane<1>(b, d);
  }
}

}  // namespace megatron::kernels::cpu::avx512

#endif
