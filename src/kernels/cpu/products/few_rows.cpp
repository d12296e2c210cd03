#include "kernels/cpu/products/few_rows.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/products/amx_products.h"
#include "kernels/cpu/products/transpose16.h"
#include "kernels/cpu/rows_ahead.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace megatron::kernels::cpu {

#if defined(__x86_64__)

namespace {

using avx512::every_other_lane;
using avx512::Vector;

// Rows of b whose sums are one vector, and words of a row that a vector holds.
constexpr int64_t kLanes = 16, kLineBytes = 64;

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
  avx512::transpose16(t);
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

// Rows and columns of a b whose sums are held at once, in 16 vectors.
constexpr int64_t kRowsAtOnce = 4, kColumnsAtOnce = 64;

using Halves = int16_t __attribute__((vector_size(64)));

// The lower or upper four elements of each 128 bits of two rows of bf16, as pairs.
template <int kHigh>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline Vector pair_up(Halves a, Halves b) {
  constexpr int k = 4 * kHigh;
  return reinterpret_cast<Vector>(__builtin_shufflevector(
      a, b, k, k + 32, k + 1, k + 33, k + 2, k + 34, k + 3, k + 35, k + 8, k + 40, k + 9, k + 41,
      k + 10, k + 42, k + 11, k + 43, k + 16, k + 48, k + 17, k + 49, k + 18, k + 50, k + 19,
      k + 51, k + 24, k + 56, k + 25, k + 57, k + 26, k + 58, k + 27, k + 59));
}

// Elements of b from `at` on, where a bit of `held` is set; else 0.
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline Halves load_halves(const std::byte* at,
                                                                         uint32_t held) {
  return reinterpret_cast<Halves>(_mm512_maskz_loadu_epi16(held, at));
}
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline Vector load_words(const std::byte* at,
                                                                        uint32_t held) {
  return reinterpret_cast<Vector>(_mm512_maskz_loadu_epi32(static_cast<__mmask16>(held), at));
}

// A word of each of 32 columns, from one row of f32 or two of bf16 (partner null: the second is 0).
// Of pairs those of columns 0 to 3, 8 to 11, 16 to 19 and 24 to 27 stand in the first vector.
template <WordKind kind>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline void load_row(const std::byte* row,
                                                                    const std::byte* partner,
                                                                    uint32_t held,
                                                                    Vector (&words)[2]) {
  if constexpr (kind == WordKind::bf16_pair) {
    const Halves even = load_halves(row, held);
    const Halves odd = partner == nullptr ? Halves{} : load_halves(partner, held);
    words[0] = pair_up<0>(even, odd);
    words[1] = pair_up<1>(even, odd);
  } else {
    words[0] = load_words(row, held);
    words[1] = load_words(row + kLineBytes, held >> kLanes);
  }
}

// 32 sums from where they lie to the order of load_row, and back.
template <WordKind kind>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline void load_part(const float* c,
                                                                     __m512 (&sums)[2]) {
  sums[0] = _mm512_loadu_ps(c);
  sums[1] = _mm512_loadu_ps(c + kLanes);
  if constexpr (kind == WordKind::bf16_pair) {
    const auto first = reinterpret_cast<Vector>(sums[0]),
               second = reinterpret_cast<Vector>(sums[1]);
    sums[0] = reinterpret_cast<__m512>(every_other_lane<0>(first, second));
    sums[1] = reinterpret_cast<__m512>(every_other_lane<1>(first, second));
  }
}
// The 128 bits of the lower or upper half of a, each with the one of b after it.
template <int kHigh>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline __m512 alternate_lanes(__m512 a, __m512 b) {
  constexpr int k = 8 * kHigh;
  return reinterpret_cast<__m512>(__builtin_shufflevector(
      reinterpret_cast<Vector>(a), reinterpret_cast<Vector>(b), k, k + 1, k + 2, k + 3, k + 16,
      k + 17, k + 18, k + 19, k + 4, k + 5, k + 6, k + 7, k + 20, k + 21, k + 22, k + 23));
}
template <WordKind kind>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline void store_part(const __m512 (&sums)[2],
                                                                      float* c) {
  constexpr bool kPairs = kind == WordKind::bf16_pair;
  _mm512_storeu_ps(c, kPairs ? alternate_lanes<0>(sums[0], sums[1]) : sums[0]);
  _mm512_storeu_ps(c + kLanes, kPairs ? alternate_lanes<1>(sums[0], sums[1]) : sums[1]);
}

// M rows and columns [j, j + 32 * Parts) of a b.
template <WordKind kind, int64_t M, int64_t Parts>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] void nn_part(const FewRowsProduct& p, int64_t i,
                                                            int64_t j) {
  constexpr int64_t kRows = kind == WordKind::bf16_pair ? 2 : 1;  // of b in a word
  const int64_t size = size_of(p.b.type), stride = p.b.stride * size;
  const std::byte* row = p.b.base + j * size;
  const uint32_t* const a = p.a + i * p.a_row;
  float* const c = p.c + i * p.ldc + j;
  uint32_t held[Parts];
  __m512 sums[M][Parts][2];
#pragma GCC unroll 2
  for (int64_t part = 0; part < Parts; ++part) {
    const int64_t columns = std::clamp<int64_t>(p.n - j - part * kPanel, 0, kPanel);
    held[part] = static_cast<uint32_t>((uint64_t{1} << columns) - 1);
#pragma GCC unroll 4
    for (int64_t r = 0; r < M; ++r) {
      sums[r][part][0] = sums[r][part][1] = _mm512_setzero_ps();
      if (p.accumulate) load_part<kind>(c + r * p.ldc + part * kPanel, sums[r][part]);
    }
  }
  const int64_t width = words(kind, p.elements);
  for (int64_t l = 0; l < width; ++l, row += kRows * stride) {
    const std::byte* const partner = kRows * l + 1 < p.elements ? row + stride : nullptr;
#pragma GCC unroll 2
    for (int64_t part = 0; part < Parts; ++part) {
      const int64_t at = part * kPanel * size;
      Vector columns[2];
      load_row<kind>(row + at, partner == nullptr ? nullptr : partner + at, held[part], columns);
#pragma GCC unroll 4
      for (int64_t r = 0; r < M; ++r) {
        const uint32_t factor = a[r * p.a_row + l];
        sums[r][part][0] = add_product<kind>(sums[r][part][0], factor, columns[0]);
        sums[r][part][1] = add_product<kind>(sums[r][part][1], factor, columns[1]);
      }
    }
  }
#pragma GCC unroll 2
  for (int64_t part = 0; part < Parts; ++part)
#pragma GCC unroll 4
    for (int64_t r = 0; r < M; ++r) store_part<kind>(sums[r][part], c + r * p.ldc + part * kPanel);
}

template <WordKind kind, int64_t M>
void nn_rows(const FewRowsProduct& p, int64_t i) {
  int64_t j = 0;
  for (; j + kPanel < p.n; j += kColumnsAtOnce) nn_part<kind, M, 2>(p, i, j);
  if (j < p.n) nn_part<kind, M, 1>(p, i, j);
}

template <WordKind kind>
void nn_product(const FewRowsProduct& p) {
  for (int64_t i = 0; i < p.m; i += kRowsAtOnce) {
    switch (std::min(kRowsAtOnce, p.m - i)) {
      case 1: nn_rows<kind, 1>(p, i); break;
      case 2: nn_rows<kind, 2>(p, i); break;
      case 3: nn_rows<kind, 3>(p, i); break;
      default: nn_rows<kind, 4>(p, i);
    }
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
  const bool as_it_lies = is_paired(kind) == (type == DType::bf16);
  // Of f32 the bits are those of the instruction set that tile_product runs on.
  const bool processor = is_paired(kind) || tiles_take_avx3();
  return m <= kFewRows && as_it_lies && processor;
}

void few_rows_product_nt(WordKind kind, const FewRowsProduct& product) {
  if (kind == WordKind::bf16_amx) return few_rows_product_nt_amx(product);
  kind == WordKind::bf16_pair ? product_of<WordKind::bf16_pair>(product)
                              : product_of<WordKind::f32>(product);
}

void few_rows_product_nn(WordKind kind, const FewRowsProduct& product) {
  if (kind == WordKind::bf16_amx) return few_rows_product_nn_amx(product);
  kind == WordKind::bf16_pair ? nn_product<WordKind::bf16_pair>(product)
                              : nn_product<WordKind::f32>(product);
}

#else

bool takes_few_rows(WordKind, DType, int64_t) { return false; }
void few_rows_product_nt(WordKind, const FewRowsProduct&) { MG_ASSERT(false); }
void few_rows_product_nn(WordKind, const FewRowsProduct&) { MG_ASSERT(false); }

#endif

}  // namespace megatron::kernels::cpu
