#include "kernels/cpu/products/amx_pack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/divide.h"
#include "base/error.h"
#include "kernels/cpu/products/transpose16.h"
#include "kernels/cpu/rows_ahead.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace megatron::kernels::cpu {

#if defined(__x86_64__)

#define MG_AVX512 gnu::target("avx512f,avx512bw,avx512vl,avx512vbmi")

namespace {

constexpr int64_t kTileRows = 16, kTileWords = 16, kTileBytes = kTileWords * 4;
constexpr int64_t kLaneBytes = 16;

using avx512::interleave;
using avx512::interleave_pairs;
using avx512::Vector;

// Four pieces of 16 bytes, one per lane. Pieces from memory are inserted without a shuffle.
[[MG_AVX512, gnu::always_inline]] inline Vector lanes(const std::byte* a, const std::byte* b,
                                                      const std::byte* c, const std::byte* d) {
  __m512i v = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)));
  v = _mm512_inserti32x4(v, _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
  v = _mm512_inserti32x4(v, _mm_loadu_si128(reinterpret_cast<const __m128i*>(c)), 2);
  v = _mm512_inserti32x4(v, _mm_loadu_si128(reinterpret_cast<const __m128i*>(d)), 3);
  return reinterpret_cast<Vector>(v);
}
[[MG_AVX512, gnu::always_inline]] inline void put(uint32_t* to, Vector v) {
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(v));
}

// Interleaves bf16 elements of the lower or upper half of each 128 bits.
using Halves = int16_t __attribute__((vector_size(64)));
template <int kHigh>
[[MG_AVX512, gnu::always_inline]] inline Vector interleave_halves(Vector a, Vector b) {
  constexpr int k = 4 * kHigh;
  return reinterpret_cast<Vector>(__builtin_shufflevector(
      reinterpret_cast<Halves>(a), reinterpret_cast<Halves>(b), k, k + 32, k + 1, k + 33, k + 2,
      k + 34, k + 3, k + 35, k + 8, k + 40, k + 9, k + 41, k + 10, k + 42, k + 11, k + 43, k + 16,
      k + 48, k + 17, k + 49, k + 18, k + 50, k + 19, k + 51, k + 24, k + 56, k + 25, k + 57,
      k + 26, k + 58, k + 27, k + 59));
}

// Transposes four columns of words of 16 rows: word l of row r to out[l * kPanel + r].
[[MG_AVX512, gnu::always_inline]] inline void transpose_four_words(const std::byte* row,
                                                                   int64_t stride, uint32_t* out) {
  Vector v[4];
#pragma GCC unroll 4
  for (int64_t i = 0; i < 4; ++i, row += stride)
    v[i] = lanes(row, row + 4 * stride, row + 8 * stride, row + 12 * stride);
  const Vector a = interleave<0>(v[0], v[1]), b = interleave<1>(v[0], v[1]);
  const Vector c = interleave<0>(v[2], v[3]), d = interleave<1>(v[2], v[3]);
  put(out, interleave_pairs<0>(a, c));
  put(out + kPanel, interleave_pairs<1>(a, c));
  put(out + 2 * kPanel, interleave_pairs<0>(b, d));
  put(out + 3 * kPanel, interleave_pairs<1>(b, d));
}

// Transposes 32 rows of 8 bf16 each: column c becomes a row of 16 words at out + 16 * c.
[[MG_AVX512, gnu::always_inline]] inline void transpose_eight_columns(
    const std::byte* const (&row)[32], int64_t offset, uint32_t* out) {
  Vector v[8], w[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    v[i] = lanes(row[i] + offset, row[8 + i] + offset, row[16 + i] + offset, row[24 + i] + offset);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    w[i] = interleave_halves<0>(v[i], v[i + 1]);
    w[i + 1] = interleave_halves<1>(v[i], v[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    v[i] = interleave<0>(w[i], w[i + 2]);
    v[i + 1] = interleave<1>(w[i], w[i + 2]);
    v[i + 2] = interleave<0>(w[i + 1], w[i + 3]);
    v[i + 3] = interleave<1>(w[i + 1], w[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    put(out + 2 * i * kTileWords, interleave_pairs<0>(v[i], v[i + 4]));
    put(out + (2 * i + 1) * kTileWords, interleave_pairs<1>(v[i], v[i + 4]));
  }
}

}  // namespace

[[MG_AVX512]] void rows_to_tiles(const MatrixRows& from, int64_t rows, int64_t elements,
                                 uint32_t* out) {
  const int64_t bytes = elements * 2, whole = bytes / kTileBytes, left = bytes % kTileBytes;
  const auto held = (uint64_t{1} << left) - 1;
  for (int64_t r = 0; r < rows; ++r, out += kTileWords) {
    const std::byte* row = from.base + r * from.stride * 2;
    uint32_t* to = out;
    for (int64_t step = 0; step < whole; ++step, row += kTileBytes, to += kAmxStepWords)
      _mm512_storeu_si512(to, _mm512_loadu_si512(row));
    if (left > 0) _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(held, row));
  }
}

[[MG_AVX512]] void columns_to_tiles(const MatrixRows& from, int64_t rows, int64_t columns,
                                    uint32_t* out) {
  constexpr int64_t kElements = 2 * kTileWords, kColumns = kLaneBytes / 2;
  const int64_t stride = from.stride * 2;
  for (int64_t k = 0; k < rows; k += kElements, out += kAmxStepWords) {
    alignas(64) std::byte part[kElements][2 * kTileRows * 2];
    const std::byte* row[kElements];
    const int64_t left = std::min(rows - k, kElements);
    const bool whole = left == kElements && columns % kColumns == 0;
    if (!whole) std::memset(part, 0, sizeof part);
    for (int64_t i = 0; i < kElements; ++i) {
      row[i] = whole ? from.base + (k + i) * stride : part[i];
      if (whole || i >= left) continue;
      std::memcpy(part[i], from.base + (k + i) * stride, static_cast<size_t>(columns) * 2);
    }
    for (int64_t j = 0; j < columns; j += kColumns)
      transpose_eight_columns(row, j * 2, out + j * kTileWords);
  }
}

[[MG_AVX512]] void pairs_to_panel(const MatrixRows& from, int64_t rows, int64_t elements,
                                  const std::byte* next, uint32_t* out) {
  const int64_t stride = from.stride * 2, whole = elements * 2 / kTileBytes;
  if (rows < kPanel) {
    return transpose_to_panel(WordKind::bf16_amx, from, rows, elements, next, out);
  }
  RowsAhead ahead;
  if (next != nullptr) ahead = RowsAhead(next, kPanel, elements * 2, stride);
  for (int64_t step = 0; step < whole; ++step) {
    for (int64_t r = 0; r < kPanel; r += kTileRows) {
      const std::byte* row = from.base + step * kTileBytes + r * stride;
      uint32_t* to = out + step * kTileWords * kPanel + r;
      ahead.lines(kTileRows);
#pragma GCC unroll 4
      for (int64_t l = 0; l < kTileWords; l += 4)
        transpose_four_words(row + l * 4, stride, to + l * kPanel);
    }
  }
  const int64_t done = whole * kTileWords;
  if (2 * done < elements) {
    transpose_to_panel(WordKind::bf16_amx, {from.base + done * 4, from.stride, from.type}, rows,
                       elements - 2 * done, nullptr, out + done * kPanel);
  }
}

[[MG_AVX512]] void pairs_to_panels(const MatrixRows& from, int64_t rows, int64_t columns,
                                   int64_t panel, uint32_t* out) {
  // Bytes of the even row are followed by those of the odd one in a vector.
  alignas(64) static constexpr auto kPlaces = [] {
    std::array<uint8_t, 64> places{};
    for (size_t i = 0; i < 64; ++i)
      places[i] = static_cast<uint8_t>(i / 4 * 2 + i % 2 + i % 4 / 2 * 32);
    return places;
  }();
  constexpr int64_t kRowsAhead = 8;
  const __m512i places = _mm512_load_si512(kPlaces.data());
  const int64_t stride = from.stride * 2, lines = ceil_div(columns * 2, kTileBytes);
  RowsAhead ahead(from.base + kRowsAhead * stride, rows - kRowsAhead, columns * 2, stride);
  for (int64_t r = 0; r < rows; r += 2, out += kPanel) {
    const auto* even = reinterpret_cast<const uint16_t*>(from.base + r * stride);
    const auto* odd = reinterpret_cast<const uint16_t*>(from.base + (r + 1) * stride);
    const bool both = r + 1 < rows;
    ahead.lines(2 * lines);
    const auto put_pairs =
        [&](int64_t j, __m256i low, __m256i high)
            __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi"))) {
              const __m512i both_rows =
                  _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(low), high, 1);
              _mm512_storeu_si512(out + j / kPanel * panel + j % kPanel,
                                  _mm512_maskz_permutexvar_epi8(~uint64_t{0}, places, both_rows));
            };
    int64_t j = 0;
    for (; both && j + kTileWords <= columns; j += kTileWords) {
      put_pairs(j, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + j)),
                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + j)));
    }
    for (; j < round_up(columns, kPanel); j += kTileWords) {
      const int64_t left = std::clamp<int64_t>(columns - j, 0, kTileWords);
      const auto held = static_cast<__mmask16>((1u << left) - 1);
      put_pairs(j, _mm256_maskz_loadu_epi16(held, even + j),
                _mm256_maskz_loadu_epi16(both ? held : __mmask16{0}, odd + j));
    }
  }
}

[[MG_AVX512]] void transpose_sums(const float* from, int64_t from_stride, int64_t rows,
                                  int64_t columns, float* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; i += kTileRows) {
    for (int64_t j = 0; j < columns; j += kTileRows) {
      Vector t[16];
      for (int64_t r = 0; r < 16; ++r)
        t[r] = reinterpret_cast<Vector>(_mm512_loadu_ps(from + (i + r) * from_stride + j));
      avx512::transpose16(t);
      for (int64_t r = 0; r < 16; ++r)
        _mm512_storeu_ps(to + (j + r) * to_stride + i, reinterpret_cast<__m512>(t[r]));
    }
  }
}

#undef MG_AVX512

#else

void transpose_sums(const float*, int64_t, int64_t, int64_t, float*, int64_t) { MG_ASSERT(false); }

void rows_to_tiles(const MatrixRows&, int64_t, int64_t, uint32_t*) { MG_ASSERT(false); }
void columns_to_tiles(const MatrixRows&, int64_t, int64_t, uint32_t*) { MG_ASSERT(false); }
void pairs_to_panel(const MatrixRows&, int64_t, int64_t, const std::byte*, uint32_t*) {
  MG_ASSERT(false);
}
void pairs_to_panels(const MatrixRows&, int64_t, int64_t, int64_t, uint32_t*) { MG_ASSERT(false); }

#endif

}  // namespace megatron::kernels::cpu
