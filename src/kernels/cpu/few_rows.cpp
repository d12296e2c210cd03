#include "kernels/cpu/few_rows.h"

#include <hwy/targets.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/rows_ahead.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace megatron::kernels::cpu {

#if defined(__x86_64__)

namespace {

// Rows of b whose sums are one vector, and words of a row that a vector holds.
constexpr int64_t kLanes = 16, kLineBytes = 64;

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
  Rows(const FewRowsProduct& p, int64_t j) {
    for (int64_t r = 0; r < kLanes; ++r)
      at[r] = p.b.base + std::min(j + r, p.n - 1) * p.b.stride * size_of(p.b.type);
  }
};

// Rows [j, j + 16) of b, as far as they are there.
RowsAhead rows_ahead(const FewRowsProduct& p, int64_t j) {
  const int64_t size = size_of(p.b.type), stride = p.b.stride * size;
  return RowsAhead(p.b.base + j * stride, std::clamp<int64_t>(p.n - j, 0, kLanes),
                   p.elements * size, stride);
}

// A line of each row, of which `elements` are there, turned to columns.
template <WordKind kind>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline void load_columns(const Rows& rows,
                                                                        int64_t line,
                                                                        int64_t elements,
                                                                        Vector (&t)[kLanes]) {
  constexpr int64_t kLine = kind == WordKind::bf16_pair ? 2 * kLanes : kLanes;
  if (elements >= kLine) {
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r)
      t[r] = reinterpret_cast<Vector>(_mm512_loadu_si512(rows.at[r] + line * kLineBytes));
  } else {
    const auto held = static_cast<uint32_t>((uint64_t{1} << elements) - 1);
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      const std::byte* const at = rows.at[r] + line * kLineBytes;
      t[r] = reinterpret_cast<Vector>(
          kind == WordKind::bf16_pair ? _mm512_maskz_loadu_epi16(held, at)
                                      : _mm512_maskz_loadu_epi32(static_cast<__mmask16>(held), at));
    }
  }
  transpose(t);
}

// M rows of a with 16 rows of b at a time, while the next 16 are asked for.
template <WordKind kind, int64_t M>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] void product(const FewRowsProduct& p) {
  constexpr int64_t kLine = kind == WordKind::bf16_pair ? 2 * kLanes : kLanes;
  const int64_t width = words(kind, p.elements), lines = (width + kLanes - 1) / kLanes;
  rows_ahead(p, 0).lines(kLanes * lines);
  for (int64_t j = 0; j < p.n; j += kLanes) {
    const Rows rows(p, j);
    RowsAhead next = rows_ahead(p, j + kLanes);
    const auto columns = static_cast<__mmask16>((1u << std::min<int64_t>(p.n - j, kLanes)) - 1);
    __m512 sums[M];
    for (int64_t i = 0; i < M; ++i)
      sums[i] = _mm512_maskz_loadu_ps(p.accumulate ? columns : __mmask16{0}, p.c + i * p.ldc + j);
    for (int64_t line = 0; line < lines; ++line) {
      const uint32_t* const a = p.a + line * kLanes;
      const int64_t count = std::min(kLanes, width - line * kLanes);
      next.lines(kLanes);
      Vector t[kLanes];
      load_columns<kind>(rows, line, p.elements - line * kLine, t);
      if (count == kLanes) {
#pragma GCC unroll 16
        for (int l = 0; l < kLanes; ++l) {
#pragma GCC unroll 8
          for (int64_t i = 0; i < M; ++i)
            sums[i] = add_product<kind>(sums[i], a[i * p.a_row + l], t[l]);
        }
      } else {
        for (int64_t l = 0; l < count; ++l)
          for (int64_t i = 0; i < M; ++i)
            sums[i] = add_product<kind>(sums[i], a[i * p.a_row + l], t[l]);
      }
    }
    for (int64_t i = 0; i < M; ++i) _mm512_mask_storeu_ps(p.c + i * p.ldc + j, columns, sums[i]);
  }
}

template <WordKind kind>
void product_of(const FewRowsProduct& p) {
  switch (p.m) {
    case 1: return product<kind, 1>(p);
    case 2: return product<kind, 2>(p);
    case 3: return product<kind, 3>(p);
    case 4: return product<kind, 4>(p);
    case 5: return product<kind, 5>(p);
    case 6: return product<kind, 6>(p);
    case 7: return product<kind, 7>(p);
    case 8: return product<kind, 8>(p);
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
