#include "kernels/cpu/products/few_rows.h"

#include <algorithm>
#include <type_traits>

#include "base/divide.h"
#include "base/error.h"
#include "kernels/cpu/products/few_rows_amx.h"
#include "kernels/cpu/products/few_rows_avx2.h"
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

// Rows of b whose sums form one vector, and bytes of a row that are loaded at a time.
constexpr int64_t kLanes = 16, kLineBytes = 64;

// Form of b and its products: as f32, pairs by AVX512_BF16, or bf16 widened to f32.
enum class Form { f32, pairs, widened };
// Elements of b in 32 bits of memory, and in one word of a.
constexpr int64_t in_memory_word(Form form) { return form == Form::f32 ? 1 : 2; }
constexpr int64_t in_word(Form form) { return form == Form::pairs ? 2 : 1; }

template <Form form>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline __m512 add_product(__m512 sum,
                                                                         uint32_t factor,
                                                                         Vector words) {
  const __m512i factors = _mm512_set1_epi32(static_cast<int>(factor));
  if constexpr (form == Form::pairs) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(factors),
                            reinterpret_cast<__m512bh>(words));
  } else {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(factors), reinterpret_cast<__m512>(words), sum);
  }
}

template <Form form, int64_t M>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline void add_products(const uint32_t* a,
                                                                        int64_t a_row, Vector words,
                                                                        __m512 (&sums)[M]) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < M; ++i) sums[i] = add_product<form>(sums[i], a[i * a_row], words);
}
// Loads 32 bits of each row of b; at least `elements` elements are readable.
template <Form form, int64_t M>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline void add_memory_word(
    const uint32_t* a, int64_t a_row, Vector bits, int64_t elements, __m512 (&sums)[M]) {
  if constexpr (form == Form::widened) {
    add_products<form>(a, a_row, bits << 16, sums);
    if (elements > 1) add_products<form>(a + 1, a_row, bits & -0x10000, sums);
  } else {
    add_products<form>(a, a_row, bits, sums);
  }
}

// 16 rows of b. If fewer remain, the last one is repeated and the surplus results are not stored.
struct Rows {
  const std::byte* at[kLanes] = {};
  Rows(const FewRowsProduct& p, int64_t j) {
    for (int64_t r = 0; r < kLanes; ++r)
      at[r] = p.b.base + std::min(j + r, p.n - 1) * p.b.stride * size_of(p.b.type);
  }
};

// Rows [j, j + 16) of b, as far as they exist.
RowsAhead rows_ahead(const FewRowsProduct& p, int64_t j) {
  if (p.meanwhile != nullptr) return {};
  const int64_t size = size_of(p.b.type), stride = p.b.stride * size;
  return RowsAhead(p.b.base + j * stride, std::clamp<int64_t>(p.n - j, 0, kLanes),
                   p.elements * size, stride);
}

// Loads a line of each row, of which `elements` elements exist, and transposes them to columns.
template <Form form>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline void load_columns(const Rows& rows,
                                                                        int64_t line,
                                                                        int64_t elements,
                                                                        Vector (&t)[kLanes]) {
  constexpr int64_t kLine = kLanes * in_memory_word(form);
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
          form != Form::f32 ? _mm512_maskz_loadu_epi16(held, at)
                            : _mm512_maskz_loadu_epi32(static_cast<__mmask16>(held), at));
    }
  }
  avx512::transpose16(t);
}

// Multiplies M rows of a with 16 rows of b at a time, while it prefetches the next 16.
template <Form form, int64_t M>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] void product(const FewRowsProduct& p) {
  constexpr int64_t kLine = kLanes * in_memory_word(form);
  constexpr int64_t kInMemory = in_memory_word(form), kWords = kInMemory / in_word(form);
  const int64_t lines = ceil_div(p.elements, kLine);
  rows_ahead(p, 0).lines(kLanes * lines);
  for (int64_t j = 0; j < p.n; j += kLanes) {
    const Rows rows(p, j);
    RowsAhead next = rows_ahead(p, j + kLanes);
    const auto columns = static_cast<__mmask16>((1u << std::min<int64_t>(p.n - j, kLanes)) - 1);
    __m512 sums[M];
    for (int64_t i = 0; i < M; ++i)
      sums[i] = _mm512_maskz_loadu_ps(p.accumulate ? columns : __mmask16{0}, p.c + i * p.ldc + j);
    for (int64_t line = 0; line < lines; ++line) {
      const uint32_t* const a = p.a + line * kLanes * kWords;
      const int64_t elements = p.elements - line * kLine;
      next.lines(kLanes);
      Vector t[kLanes];
      load_columns<form>(rows, line, elements, t);
      if (elements >= kLine) {
#pragma GCC unroll 16
        for (int l = 0; l < kLanes; ++l)
          add_memory_word<form>(a + l * kWords, p.a_row, t[l], kInMemory, sums);
      } else {
        for (int64_t l = 0; l * kInMemory < elements; ++l)
          add_memory_word<form>(a + l * kWords, p.a_row, t[l], elements - l * kInMemory, sums);
      }
    }
    for (int64_t i = 0; i < M; ++i) _mm512_mask_storeu_ps(p.c + i * p.ldc + j, columns, sums[i]);
  }
}

// Rows and columns of b whose sums are held at once, in 16 vectors.
constexpr int64_t kRowsAtOnce = 4, kColumnsAtOnce = 64;

using Halves = int16_t __attribute__((vector_size(64)));

// The lower or upper four elements of each 128 bits of two rows of bf16, interleaved to pairs.
template <int kHigh>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline Vector pair_up(Halves a, Halves b) {
  constexpr int k = 4 * kHigh;
  return reinterpret_cast<Vector>(__builtin_shufflevector(
      a, b, k, k + 32, k + 1, k + 33, k + 2, k + 34, k + 3, k + 35, k + 8, k + 40, k + 9, k + 41,
      k + 10, k + 42, k + 11, k + 43, k + 16, k + 48, k + 17, k + 49, k + 18, k + 50, k + 19,
      k + 51, k + 24, k + 56, k + 25, k + 57, k + 26, k + 58, k + 27, k + 59));
}

// Elements of b from `at` on whose bit in `held` is set; 0 for the others.
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline Halves load_halves(const std::byte* at,
                                                                         uint32_t held) {
  return reinterpret_cast<Halves>(_mm512_maskz_loadu_epi16(held, at));
}
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline Vector load_words(const std::byte* at,
                                                                        uint32_t held) {
  return reinterpret_cast<Vector>(_mm512_maskz_loadu_epi32(static_cast<__mmask16>(held), at));
}

// The lower or upper 16 elements, widened to f32.
template <int kHigh>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline Vector widen(Halves v) {
  constexpr int k = 32 + 16 * kHigh;
  return reinterpret_cast<Vector>(__builtin_shufflevector(
      Halves{}, v, 0, k, 0, k + 1, 0, k + 2, 0, k + 3, 0, k + 4, 0, k + 5, 0, k + 6, 0, k + 7, 0,
      k + 8, 0, k + 9, 0, k + 10, 0, k + 11, 0, k + 12, 0, k + 13, 0, k + 14, 0, k + 15));
}

// One word for each of 32 columns, from one row or, as pairs, from two (if partner is null, the
// second is 0). The first vector holds the pairs of columns 0 to 3, 8 to 11, 16 to 19 and 24 to 27.
template <Form form>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline void load_row(const std::byte* row,
                                                                    const std::byte* partner,
                                                                    uint32_t held,
                                                                    Vector (&words)[2]) {
  if constexpr (form == Form::pairs) {
    const Halves even = load_halves(row, held);
    const Halves odd = partner == nullptr ? Halves{} : load_halves(partner, held);
    words[0] = pair_up<0>(even, odd);
    words[1] = pair_up<1>(even, odd);
  } else if constexpr (form == Form::widened) {
    const Halves halves = load_halves(row, held);
    words[0] = widen<0>(halves);
    words[1] = widen<1>(halves);
  } else {
    words[0] = load_words(row, held);
    words[1] = load_words(row + kLineBytes, held >> kLanes);
  }
}

// Loads 32 sums from memory order to the order of load_row, or stores them back.
template <Form form>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline void load_part(const float* c,
                                                                     __m512 (&sums)[2]) {
  sums[0] = _mm512_loadu_ps(c);
  sums[1] = _mm512_loadu_ps(c + kLanes);
  if constexpr (form == Form::pairs) {
    const auto first = reinterpret_cast<Vector>(sums[0]),
               second = reinterpret_cast<Vector>(sums[1]);
    sums[0] = reinterpret_cast<__m512>(every_other_lane<0>(first, second));
    sums[1] = reinterpret_cast<__m512>(every_other_lane<1>(first, second));
  }
}
// The 128-bit lanes of the lower or upper half of a, each followed by the corresponding one of b.
template <int kHigh>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline __m512 alternate_lanes(__m512 a, __m512 b) {
  constexpr int k = 8 * kHigh;
  return reinterpret_cast<__m512>(__builtin_shufflevector(
      reinterpret_cast<Vector>(a), reinterpret_cast<Vector>(b), k, k + 1, k + 2, k + 3, k + 16,
      k + 17, k + 18, k + 19, k + 4, k + 5, k + 6, k + 7, k + 20, k + 21, k + 22, k + 23));
}
template <Form form>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] inline void store_part(const __m512 (&sums)[2],
                                                                      float* c) {
  constexpr bool kPairs = form == Form::pairs;
  _mm512_storeu_ps(c, kPairs ? alternate_lanes<0>(sums[0], sums[1]) : sums[0]);
  _mm512_storeu_ps(c + kLanes, kPairs ? alternate_lanes<1>(sums[0], sums[1]) : sums[1]);
}

// M rows and the columns [j, j + 32 * Parts) of a b.
template <Form form, int64_t M, int64_t Parts>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] void nn_part(const FewRowsProduct& p, int64_t i,
                                                            int64_t j) {
  constexpr int64_t kRows = in_word(form);  // rows of b per word
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
      if (p.accumulate) load_part<form>(c + r * p.ldc + part * kPanel, sums[r][part]);
    }
  }
  const int64_t width = ceil_div(p.elements, kRows);
  for (int64_t l = 0; l < width; ++l, row += kRows * stride) {
    const std::byte* const partner = kRows * l + 1 < p.elements ? row + stride : nullptr;
#pragma GCC unroll 2
    for (int64_t part = 0; part < Parts; ++part) {
      const int64_t at = part * kPanel * size;
      Vector columns[2];
      load_row<form>(row + at, partner == nullptr ? nullptr : partner + at, held[part], columns);
#pragma GCC unroll 4
      for (int64_t r = 0; r < M; ++r) {
        const uint32_t factor = a[r * p.a_row + l];
        sums[r][part][0] = add_product<form>(sums[r][part][0], factor, columns[0]);
        sums[r][part][1] = add_product<form>(sums[r][part][1], factor, columns[1]);
      }
    }
  }
#pragma GCC unroll 2
  for (int64_t part = 0; part < Parts; ++part)
#pragma GCC unroll 4
    for (int64_t r = 0; r < M; ++r) store_part<form>(sums[r][part], c + r * p.ldc + part * kPanel);
}

template <Form form, int64_t M>
void nn_rows(const FewRowsProduct& p, int64_t i) {
  int64_t j = 0;
  for (; j + kPanel < p.n; j += kColumnsAtOnce) nn_part<form, M, 2>(p, i, j);
  if (j < p.n) nn_part<form, M, 1>(p, i, j);
}

template <Form form>
void nn_product(const FewRowsProduct& p) {
  for (int64_t i = 0; i < p.m; i += kRowsAtOnce) {
    switch (std::min(kRowsAtOnce, p.m - i)) {
      case 1: nn_rows<form, 1>(p, i); break;
      case 2: nn_rows<form, 2>(p, i); break;
      case 3: nn_rows<form, 3>(p, i); break;
      default: nn_rows<form, 4>(p, i);
    }
  }
}

template <Form form>
void product_of(const FewRowsProduct& p) {
  with_rows(p.m, [&](auto m) { product<form, m()>(p); });
}

// Calls f with the form as a constant.
template <class F>
void with_form(WordKind kind, DType type, F f) {
  using enum Form;
  if (is_paired(kind)) return f(std::integral_constant<Form, pairs>());
  if (type == DType::bf16) return f(std::integral_constant<Form, widened>());
  f(std::integral_constant<Form, f32>());
}

// Lets the caller prefetch as many lines as the product reads of b's rows.
void prefetch_all(const FewRowsProduct& p, int64_t rows, int64_t elements) {
  if (p.meanwhile != nullptr)
    (*p.meanwhile)(rows* ceil_div(elements * size_of(p.b.type), kLineBytes));
}

}  // namespace

bool takes_few_rows(WordKind kind, DType type, int64_t m) {
  if (m > kFewRows) return false;
  if (is_paired(kind)) return type == DType::bf16;
  // The bits must be those of the instruction set that tile_product uses.
  return tile_set() != TileSet::other;
}

void few_rows_product_nt(WordKind kind, const FewRowsProduct& product) {
  if (kind == WordKind::bf16_amx) return few_rows_product_nt_amx(product);
  prefetch_all(product, product.n, product.elements);
  if (kind == WordKind::f32 && tile_set() == TileSet::avx2)
    return few_rows_product_nt_avx2(product);
  with_form(kind, product.b.type, [&](auto form) { product_of<form()>(product); });
}

void few_rows_product_nn(WordKind kind, const FewRowsProduct& product) {
  if (kind == WordKind::bf16_amx) return few_rows_product_nn_amx(product);
  prefetch_all(product, product.elements, product.n);
  if (kind == WordKind::f32 && tile_set() == TileSet::avx2)
    return few_rows_product_nn_avx2(product);
  with_form(kind, product.b.type, [&](auto form) { nn_product<form()>(product); });
}

#else

bool takes_few_rows(WordKind, DType, int64_t) { return false; }
void few_rows_product_nt(WordKind, const FewRowsProduct&) { MG_ASSERT(false); }
void few_rows_product_nn(WordKind, const FewRowsProduct&) { MG_ASSERT(false); }

#endif

}  // namespace megatron::kernels::cpu
