#include "kernels/cpu/products/few_rows_avx2.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "kernels/cpu/rows_ahead.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace megatron::kernels::cpu {

#if defined(__x86_64__)

namespace {
namespace avx2 {

constexpr int64_t kLanes = 8, kLineBytes = 64, kLineWords = kLineBytes / 4;
// Rows of b whose sums are held at once, in two vectors.
constexpr int64_t kRows = 2 * kLanes;

// Loads eight elements, widened to f32.
template <class T>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 load(const void* at) {
  if constexpr (std::is_same_v<T, float>) {
    return _mm256_loadu_ps(static_cast<const float*>(at));
  } else {
    const __m128i halves = _mm_loadu_si128(static_cast<const __m128i*>(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
}
// Loads the first `count` elements; the others are 0.
template <class T>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 load_first(const void* at,
                                                                         int64_t count) {
  T elements[kLanes] = {};
  std::memcpy(elements, at, static_cast<size_t>(count) * sizeof(T));
  return load<T>(elements);
}

// Mask for _mm256_maskload_ps and _mm256_maskstore_ps that selects the first `count` elements.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256i first_lanes(int64_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
}

// 16 rows of b. If fewer remain, the last one is repeated and the surplus results are not stored.
struct Rows {
  const std::byte* at[kRows] = {};
  Rows() = default;
  Rows(const FewRowsProduct& p, int64_t j) {
    for (int64_t r = 0; r < kRows; ++r)
      at[r] = p.b.base + std::min(j + r, p.n - 1) * p.b.stride * size_of(p.b.type);
  }
};

// The parts of rows beyond their whole lines, each followed by zeros.
struct Rests {
  alignas(64) std::byte bytes[kRows][kLineBytes] = {};
  Rows rows;
  Rests(const Rows& from, int64_t offset, int64_t count) {
    for (int64_t r = 0; r < kRows; ++r) {
      std::memcpy(bytes[r], from.at[r] + offset, static_cast<size_t>(count));
      rows.at[r] = bytes[r];
    }
  }
};

// Rows [j, j + 16) of b, as far as they exist.
RowsAhead rows_ahead(const FewRowsProduct& p, int64_t j) {
  if (p.meanwhile != nullptr) return {};
  const int64_t size = size_of(p.b.type), stride = p.b.stride * size;
  return RowsAhead(p.b.base + j * stride, std::clamp<int64_t>(p.n - j, 0, kRows), p.elements * size,
                   stride);
}

// A cache line of each of 16 rows, transposed: word l of row r is words[l][r]. A whole line is read
// at once, because rows a power of two apart compete for the same sets of the L1 cache.
struct Line {
  alignas(64) float words[kLineWords][kRows];
  [[gnu::target("avx2,fma"), gnu::always_inline]] inline void load(const Rows& rows,
                                                                   int64_t offset) {
#pragma GCC unroll 4
    for (int64_t r = 0; r < kRows; r += kLanes) {
#pragma GCC unroll 4
      for (int64_t l = 0; l < kLineWords; l += 4) turn(rows.at + r, offset + 4 * l, &words[l][r]);
    }
  }

 private:
  // Transposes four words of each of eight rows.
  [[gnu::target("avx2,fma"), gnu::always_inline]] static inline void turn(
      const std::byte* const* rows, int64_t offset, float* out) {
    __m256 v[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const __m128 low = _mm_loadu_ps(reinterpret_cast<const float*>(rows[r] + offset));
      const __m128 high = _mm_loadu_ps(reinterpret_cast<const float*>(rows[r + 4] + offset));
      v[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
    }
    const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(v[0], v[1])),
                  b = _mm256_castps_pd(_mm256_unpacklo_ps(v[2], v[3])),
                  c = _mm256_castps_pd(_mm256_unpackhi_ps(v[0], v[1])),
                  d = _mm256_castps_pd(_mm256_unpackhi_ps(v[2], v[3]));
    _mm256_store_ps(out, _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)));
    _mm256_store_ps(out + kRows, _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    _mm256_store_ps(out + 2 * kRows, _mm256_castpd_ps(_mm256_unpacklo_pd(c, d)));
    _mm256_store_ps(out + 3 * kRows, _mm256_castpd_ps(_mm256_unpackhi_pd(c, d)));
  }
};

// One element of each of eight words: the f32 itself, or the first or second of two bf16.
template <class T, int kWhich>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 element(__m256 words) {
  if constexpr (std::is_same_v<T, float>) return words;
  const __m256i bits = _mm256_castps_si256(words);
  if constexpr (kWhich == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
  return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(-0x10000)));
}

// Sums of a row of a with 16 rows of b.
struct Sums {
  __m256 low, high;
};

template <int64_t M>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void add_products(const float* a,
                                                                         int64_t a_row, __m256 low,
                                                                         __m256 high,
                                                                         Sums (&sums)[M]) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < M; ++i) {
    const __m256 factor = _mm256_set1_ps(a[i * a_row]);
    sums[i].low = _mm256_fmadd_ps(factor, low, sums[i].low);
    sums[i].high = _mm256_fmadd_ps(factor, high, sums[i].high);
  }
}

// Adds the first `count` elements of a line, or the whole line.
template <class T, bool whole, int64_t M>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void add_line(const Line& line,
                                                                     int64_t count, const float* a,
                                                                     int64_t a_row, Sums* to) {
  constexpr int64_t kInWord = 4 / static_cast<int64_t>(sizeof(T));
  Sums sums[M];
#pragma GCC unroll 8
  for (int64_t i = 0; i < M; ++i) sums[i] = to[i];
#pragma GCC unroll 4
  for (int64_t l = 0; l < kLineWords; ++l) {
    const int64_t k = l * kInWord;
    if (!whole && k >= count) break;
    const __m256 low = _mm256_load_ps(line.words[l]), high = _mm256_load_ps(line.words[l] + kLanes);
    add_products(a + k, a_row, element<T, 0>(low), element<T, 0>(high), sums);
    if (kInWord == 1 || (!whole && k + 1 >= count)) continue;
    add_products(a + k + 1, a_row, element<T, 1>(low), element<T, 1>(high), sums);
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < M; ++i) to[i] = sums[i];
}
// Takes only as many rows of a at a time as leave enough registers for the rest.
template <class T, bool whole, int64_t M>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void add_rows(const Line& line,
                                                                     int64_t count, const float* a,
                                                                     int64_t a_row, Sums* sums) {
  constexpr int64_t kFirst = M <= 6 ? M : 4;
  add_line<T, whole, kFirst>(line, count, a, a_row, sums);
  if constexpr (M > kFirst)
    add_line<T, whole, M - kFirst>(line, count, a + kFirst * a_row, a_row, sums + kFirst);
}

// Multiplies M rows of a with 16 rows of b at a time, while it prefetches the next 16.
template <class T, int64_t M>
[[gnu::target("avx2,fma")]] void nt_rows(const FewRowsProduct& p) {
  constexpr int64_t kSize = sizeof(T), kElements = kLineBytes / kSize;
  const int64_t whole = p.elements / kElements * kElements, rest = p.elements - whole;
  const float* const a = reinterpret_cast<const float*>(p.a);
  RowsAhead first = rows_ahead(p, 0);
  first.lines(first.all());
  for (int64_t j = 0; j < p.n; j += kRows) {
    const Rows rows(p, j);
    RowsAhead next = rows_ahead(p, j + kRows);
    const __m256i low = first_lanes(p.n - j), high = first_lanes(p.n - j - kLanes);
    float* const c = p.c + j;
    Sums sums[M];
    for (int64_t i = 0; i < M; ++i) {
      sums[i] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
      if (!p.accumulate) continue;
      sums[i] = {_mm256_maskload_ps(c + i * p.ldc, low),
                 _mm256_maskload_ps(c + i * p.ldc + kLanes, high)};
    }
    Line line;
    for (int64_t k = 0; k < whole; k += kElements) {
      next.lines(kRows);
      line.load(rows, k * kSize);
      add_rows<T, true, M>(line, kElements, a + k, p.a_row, sums);
    }
    if (rest > 0) {
      line.load(Rests(rows, whole * kSize, rest * kSize).rows, 0);
      add_rows<T, false, M>(line, rest, a + whole, p.a_row, sums);
    }
    next.lines(next.all());
    for (int64_t i = 0; i < M; ++i) {
      _mm256_maskstore_ps(c + i * p.ldc, low, sums[i].low);
      _mm256_maskstore_ps(c + i * p.ldc + kLanes, high, sums[i].high);
    }
  }
}

template <class T>
void nt_product(const FewRowsProduct& p) {
  with_rows(p.m, [&](auto m) { nt_rows<T, m()>(p); });
}

// Rows [i, i + M) and `Vectors` vectors of columns from j on of a b; the last vector may be
// incomplete.
template <class T, int64_t M, int64_t Vectors, bool whole>
[[gnu::target("avx2,fma")]] void nn_part(const FewRowsProduct& p, int64_t i, int64_t j) {
  const int64_t stride = p.b.stride * static_cast<int64_t>(sizeof(T));
  const std::byte* row = p.b.base + j * static_cast<int64_t>(sizeof(T));
  const float* a = reinterpret_cast<const float*>(p.a) + i * p.a_row;
  float* const c = p.c + i * p.ldc + j;
  __m256 sums[M][Vectors];
#pragma GCC unroll 4
  for (int64_t r = 0; r < M; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < Vectors; ++v)
      sums[r][v] = p.accumulate ? _mm256_loadu_ps(c + r * p.ldc + v * kLanes) : _mm256_setzero_ps();
  }
  for (int64_t l = 0; l < p.elements; ++l, ++a, row += stride) {
    __m256 columns[Vectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < Vectors; ++v) {
      const std::byte* const at = row + v * kLanes * static_cast<int64_t>(sizeof(T));
      columns[v] = whole ? load<T>(at) : load_first<T>(at, p.n - j);
    }
#pragma GCC unroll 4
    for (int64_t r = 0; r < M; ++r) {
      const __m256 factor = _mm256_set1_ps(a[r * p.a_row]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < Vectors; ++v)
        sums[r][v] = _mm256_fmadd_ps(factor, columns[v], sums[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int64_t r = 0; r < M; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < Vectors; ++v) _mm256_storeu_ps(c + r * p.ldc + v * kLanes, sums[r][v]);
  }
}

template <class T, int64_t M>
void nn_rows(const FewRowsProduct& p, int64_t i) {
  constexpr int64_t kVectors = M <= 2 ? 4 : 2;  // leaves registers for the other values
  int64_t j = 0;
  for (; j + kVectors * kLanes <= p.n; j += kVectors * kLanes)
    nn_part<T, M, kVectors, true>(p, i, j);
  for (; j + kLanes <= p.n; j += kLanes) nn_part<T, M, 1, true>(p, i, j);
  if (j < p.n) nn_part<T, M, 1, false>(p, i, j);
}

template <class T>
void nn_product(const FewRowsProduct& p) {
  constexpr int64_t kRowsAtOnce = 4;
  for (int64_t i = 0; i < p.m; i += kRowsAtOnce) {
    switch (std::min(kRowsAtOnce, p.m - i)) {
      case 1: nn_rows<T, 1>(p, i); break;
      case 2: nn_rows<T, 2>(p, i); break;
      case 3: nn_rows<T, 3>(p, i); break;
      default: nn_rows<T, 4>(p, i);
    }
  }
}

}  // namespace avx2
}  // namespace

void few_rows_product_nt_avx2(const FewRowsProduct& product) {
  product.b.type == DType::f32 ? avx2::nt_product<float>(product) : avx2::nt_product<bf16>(product);
}
void few_rows_product_nn_avx2(const FewRowsProduct& product) {
  product.b.type == DType::f32 ? avx2::nn_product<float>(product) : avx2::nn_product<bf16>(product);
}

#else

void few_rows_product_nt_avx2(const FewRowsProduct&) { MG_ASSERT(false); }
void few_rows_product_nn_avx2(const FewRowsProduct&) { MG_ASSERT(false); }

#endif

}  // namespace megatron::kernels::cpu
