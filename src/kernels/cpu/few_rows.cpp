#include "kernels/cpu/few_rows.h"

#include <hwy/targets.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/matmul.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace megatron::kernels::cpu {

#if defined(__x86_64__)

namespace {

// Rows of b whose sums are one vector, and words of a row that a vector holds.
constexpr int64_t kLanes = 16;
// Lines of each row that are asked for ahead of the one that is read.
constexpr int64_t kAhead = 12;

using Vector = int32_t __attribute__((vector_size(64)));

// Interleaves elements, or pairs of them, of the lower or upper half of each 128 bits.
template <int kHigh>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline Vector interleave(Vector a, Vector b) {
  constexpr int k = 2 * kHigh;
  return __builtin_shufflevector(a, b, k, k + 16, k + 1, k + 17, k + 4, k + 20, k + 5, k + 21,
                                 k + 8, k + 24, k + 9, k + 25, k + 12, k + 28, k + 13, k + 29);
}
using Pairs = int64_t __attribute__((vector_size(64)));
template <int k>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline Vector interleave_pairs(Vector a, Vector b) {
  return reinterpret_cast<Vector>(
      __builtin_shufflevector(reinterpret_cast<Pairs>(a), reinterpret_cast<Pairs>(b), k, k + 8,
                              k + 2, k + 10, k + 4, k + 12, k + 6, k + 14));
}
// The even or the odd ones of the 128 bits of a, then those of b.
template <int kOdd>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline Vector every_other_lane(Vector a, Vector b) {
  constexpr int k = 4 * kOdd;
  return __builtin_shufflevector(a, b, k, k + 1, k + 2, k + 3, k + 8, k + 9, k + 10, k + 11, k + 16,
                                 k + 17, k + 18, k + 19, k + 24, k + 25, k + 26, k + 27);
}

// Words of 16 rows become the same words of their columns: lane r of t[l] is word l of row r.
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline void transpose(Vector (&t)[kLanes]) {
  Vector pairs[kLanes], fours[kLanes];
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

template <WordKind kind>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline __m512 add_product(__m512 sum,
                                                                         uint32_t factor,
                                                                         Vector words) {
  const __m512i factors = _mm512_set1_epi32(static_cast<int>(factor));
  if constexpr (kind == WordKind::bf16_pair) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(factors),
                            reinterpret_cast<__m512bh>(words));
  } else {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(factors), reinterpret_cast<__m512>(words), sum);
  }
}

// 16 rows of b, fewer at the end: those beyond are the last one again, and what they give is not
// stored.
struct Rows {
  const std::byte* at[kLanes] = {};
  Rows() = default;
  Rows(const FewRowsProduct& p, int64_t j) {
    for (int64_t r = 0; r < kLanes; ++r)
      at[r] = p.b.base + std::min(j + r, p.n - 1) * p.b.stride * size_of(p.b.type);
  }
};

template <int64_t kGroups>
struct Block {
  Rows groups[kGroups];
  Block(const FewRowsProduct& p, int64_t j) {
    for (int64_t g = 0; g < kGroups; ++g) groups[g] = Rows(p, j + g * kLanes);
  }
  const Rows& operator[](int64_t g) const { return groups[g]; }
};

inline __mmask16 columns_from(const FewRowsProduct& p, int64_t j) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(p.n - j, 0, kLanes)) - 1);
}

// A line of 64 bytes of each row, of which `elements` are there, turned to columns. soon: where the
// lines lie that are asked for.
template <WordKind kind>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline void load_columns(
    const Rows& rows, int64_t line, int64_t elements, const Rows& soon, int64_t soon_line,
    Vector (&t)[kLanes]) {
  constexpr int64_t kLine = kind == WordKind::bf16_pair ? 2 * kLanes : kLanes;
  if (elements >= kLine) {
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      _mm_prefetch(soon.at[r] + soon_line * 64, _MM_HINT_T0);
      t[r] = reinterpret_cast<Vector>(_mm512_loadu_si512(rows.at[r] + line * 64));
    }
  } else {
    const auto held = static_cast<uint32_t>((uint64_t{1} << elements) - 1);
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      const std::byte* const at = rows.at[r] + line * 64;
      t[r] = reinterpret_cast<Vector>(
          kind == WordKind::bf16_pair ? _mm512_maskz_loadu_epi16(held, at)
                                      : _mm512_maskz_loadu_epi32(static_cast<__mmask16>(held), at));
    }
  }
  transpose(t);
}

// M rows of a with kGroups times 16 rows of b: as many chains of sums as hide their latency.
template <WordKind kind, int64_t M, int64_t kGroups>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] void product(const FewRowsProduct& p) {
  constexpr int64_t kLine = kind == WordKind::bf16_pair ? 2 * kLanes : kLanes;
  const int64_t width = words(kind, p.elements), lines = (width + kLanes - 1) / kLanes;
  for (int64_t j = 0; j < p.n; j += kGroups * kLanes) {
    const Block<kGroups> now(p, j), next(p, j + kGroups * kLanes);
    __m512 sums[kGroups][M];
    for (int64_t g = 0; g < kGroups; ++g) {
      const __mmask16 held = p.accumulate ? columns_from(p, j + g * kLanes) : __mmask16{0};
      for (int64_t i = 0; i < M; ++i)
        sums[g][i] = _mm512_maskz_loadu_ps(held, p.c + i * p.ldc + j + g * kLanes);
    }
    for (int64_t line = 0; line < lines; ++line) {
      const uint32_t* const a = p.a + line * kLanes;
      const int64_t count = std::min(kLanes, width - line * kLanes);
#pragma GCC unroll 2
      for (int64_t g = 0; g < kGroups; ++g) {
        const Rows& rows = now[g];
        const bool here = line + kAhead < lines;
        const Rows& soon = here ? now[g] : next[g];
        Vector t[kLanes];
        load_columns<kind>(rows, line, p.elements - line * kLine, soon,
                           line + kAhead - (here ? 0 : lines), t);
        if (count == kLanes) {
#pragma GCC unroll 16
          for (int l = 0; l < kLanes; ++l) {
#pragma GCC unroll 8
            for (int64_t i = 0; i < M; ++i)
              sums[g][i] = add_product<kind>(sums[g][i], a[i * p.a_row + l], t[l]);
          }
        } else {
          for (int64_t l = 0; l < count; ++l)
            for (int64_t i = 0; i < M; ++i)
              sums[g][i] = add_product<kind>(sums[g][i], a[i * p.a_row + l], t[l]);
        }
      }
    }
    for (int64_t g = 0; g < kGroups; ++g) {
      for (int64_t i = 0; i < M; ++i) {
        _mm512_mask_storeu_ps(p.c + i * p.ldc + j + g * kLanes, columns_from(p, j + g * kLanes),
                              sums[g][i]);
      }
    }
  }
}

template <WordKind kind>
void product_of(const FewRowsProduct& p) {
  switch (p.m) {
    case 1: return product<kind, 1, 2>(p);
    case 2: return product<kind, 2, 2>(p);
    case 3: return product<kind, 3, 1>(p);
    case 4: return product<kind, 4, 1>(p);
    case 5: return product<kind, 5, 1>(p);
    case 6: return product<kind, 6, 1>(p);
    case 7: return product<kind, 7, 1>(p);
    case 8: return product<kind, 8, 1>(p);
    default: MG_ASSERT(false);
  }
}

}  // namespace

bool takes_few_rows(WordKind kind, DType type, int64_t m) {
  const bool as_it_lies = (kind == WordKind::f32) == (type == DType::f32);
  // Of f32 the bits are those of the instruction set that tile_product runs on.
  const bool processor = kind == WordKind::bf16_pair ? bf16_products() == Bf16Products::native
                                                     : (hwy::SupportedTargets() & HWY_AVX3) != 0;
  return m <= kFewRows && as_it_lies && processor;
}

void few_rows_product(WordKind kind, const FewRowsProduct& product) {
  kind == WordKind::bf16_pair ? product_of<WordKind::bf16_pair>(product)
                              : product_of<WordKind::f32>(product);
}

#else

bool takes_few_rows(WordKind, DType, int64_t) { return false; }
void few_rows_product(WordKind, const FewRowsProduct&) { MG_ASSERT(false); }

#endif

}  // namespace megatron::kernels::cpu
