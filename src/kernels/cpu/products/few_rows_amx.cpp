#include "kernels/cpu/products/few_rows_amx.h"

#include <algorithm>
#include <cstring>

#include "base/divide.h"
#include "base/error.h"
#include "kernels/cpu/products/amx_products.h"
#include "kernels/cpu/products/transpose16.h"
#include "kernels/cpu/rows_ahead.h"

#if defined(__x86_64__)
#include "kernels/cpu/products/amx_strip.h"
#endif

namespace megatron::kernels::cpu {

#if defined(__x86_64__)

#define MG_AVX512 gnu::target("avx512f,avx512bw")

namespace {

using amx::kColumns0;
using amx::kRows;
using amx::kRows0;
using amx::kRows1;
using amx::kRowWords;
using amx::kSums00;
using amx::kSums10;

// Few rows take the role of columns: rows of b are the first operand, read in place, 32 at a time,
// and the sums come out transposed.
class FewRows {
 public:
  static constexpr int64_t kMaxWords = 8192;  // over all rows of a

  explicit FewRows(const FewRowsProduct& p)
      : p_(p), width_(words(WordKind::bf16_amx, p.elements)), stride_(p.b.stride * 2) {
    if (p.m > 1) turn();
  }

  void run() {
    RowsAhead first = ahead(0);
    first.lines(first.all());
    for (int64_t j = 0; j < p_.n; j += kAmxStrip) {
      const int64_t rows = std::min(kAmxStrip, p_.n - j);
      rows > kRows ? multiply<true>(j, rows) : multiply<false>(j, rows);
    }
  }

 private:
  // Sums of up to 32 rows of b: rows [16], then the others. A single row of a has them where they
  // belong.
  struct Sums {
    float* first;
    int64_t stride;  // floats from one row to the next
  };

  // turned_[l * m + i] = word l of row i.
  void turn() {
    for (int64_t l = 0; l < width_; ++l)
      for (int64_t i = 0; i < p_.m; ++i) turned_[l * p_.m + i] = p_.a[i * p_.a_row + l];
  }

  RowsAhead ahead(int64_t j) const {
    if (p_.meanwhile != nullptr) return {};
    return RowsAhead(p_.b.base + j * stride_,
                     std::clamp<int64_t>(p_.n + p_.after - j, 0, kAmxStrip), p_.elements * 2,
                     stride_);
  }

  // Sums of the rows [j, j + rows) of b, read from and written to c.
  void take_sums(int64_t j, int64_t rows, float* sums) const {
    for (int64_t i = 0; i < p_.m; ++i)
      for (int64_t r = 0; r < rows; ++r) sums[r * kRows + i] = p_.c[i * p_.ldc + j + r];
  }
  void put_sums(int64_t j, int64_t rows, const float* sums) const {
    for (int64_t i = 0; i < p_.m; ++i)
      for (int64_t r = 0; r < rows; ++r) p_.c[i * p_.ldc + j + r] = sums[r * kRows + i];
  }

  template <bool kTwo>
  static void load_sums(const Sums& sums) {
    amx::load<kSums00>(sums.first, sums.stride * 4);
    if constexpr (kTwo) amx::load<kSums10>(sums.first + kRows * sums.stride, sums.stride * 4);
  }
  template <bool kTwo>
  static void store_sums(const Sums& sums) {
    amx::store<kSums00>(sums.first, sums.stride * 4);
    if constexpr (kTwo) amx::store<kSums10>(sums.first + kRows * sums.stride, sums.stride * 4);
  }
  // Calls meanwhile(n) for n lines to prefetch, as many as it reads of b.
  template <bool kTwo, class F>
  static void step(const std::byte* b, int64_t stride, const uint32_t* a, int64_t a_stride,
                   F meanwhile) {
    meanwhile(kRows);
    amx::load<kColumns0>(a, a_stride);
    amx::load<kRows0>(b, stride);
    amx::multiply<kSums00, kRows0, kColumns0>();
    if constexpr (kTwo) {
      meanwhile(kRows);
      amx::load<kRows1>(b + kRows * stride, stride);
      amx::multiply<kSums10, kRows1, kColumns0>();
    }
  }

  template <bool kTwo>
  void multiply(int64_t j, int64_t rows) {
    constexpr int64_t kStepBytes = kRowWords * 4;
    alignas(64) float turned_sums[kAmxStrip * kRows];
    const bool in_place = p_.m == 1;
    const Sums sums = in_place ? Sums{p_.c + j, 1} : Sums{turned_sums, kRows};
    const int64_t whole = p_.elements * 2 / kStepBytes, left = width_ - whole * kRowWords;
    tiles_.shape(rows, whole > 0 ? kRowWords : left, p_.m);
    if (p_.accumulate) {
      if (!in_place) take_sums(j, rows, turned_sums);
      load_sums<kTwo>(sums);
    } else {
      amx::zero<kSums00>();
      if constexpr (kTwo) amx::zero<kSums10>();
    }
    const std::byte* b = p_.b.base + j * stride_;
    const uint32_t* a = in_place ? p_.a : turned_;
    const int64_t a_stride = p_.m * 4;
    const auto steps = [&](auto meanwhile) {
      for (int64_t s = 0; s < whole; ++s, b += kStepBytes, a += kRowWords * p_.m)
        step<kTwo>(b, stride_, a, a_stride, meanwhile);
      if (left == 0) return;
      if (whole > 0) {
        store_sums<kTwo>(sums);
        tiles_.shape(rows, left, p_.m);
        load_sums<kTwo>(sums);
      }
      if (p_.elements % 2 == 0) return step<kTwo>(b, stride_, a, a_stride, meanwhile);
      // Memory after the end of a row must not enter the product.
      alignas(64) std::byte ends[kAmxStrip * kStepBytes] = {};
      const auto bytes = static_cast<size_t>(p_.elements * 2 - whole * kStepBytes);
      for (int64_t r = 0; r < rows; ++r) std::memcpy(ends + r * kStepBytes, b + r * stride_, bytes);
      step<kTwo>(ends, kStepBytes, a, a_stride, meanwhile);
    };
    if (p_.meanwhile != nullptr) {
      steps(*p_.meanwhile);
    } else {
      RowsAhead next = ahead(j + kAmxStrip);
      steps([&](int64_t lines) { next.lines(lines); });
    }
    store_sums<kTwo>(sums);
    if (!in_place) put_sums(j, rows, turned_sums);
  }

  const FewRowsProduct& p_;
  int64_t width_, stride_;
  alignas(64) uint32_t turned_[kMaxWords];
  amx::Tiles tiles_;
};

// Makes vector instructions round as tiles do: to nearest, with subnormal numbers taken for zero.
// The sums of tiles are those of fused vector instructions then (kernels/cpu/products/tiles.h).
// Their code must be in a function of its own that is not inlined, since the compiler does not know
// that it depends on this.
class RoundAsTiles {
 public:
  RoundAsTiles() : before_(_mm_getcsr()) {
    constexpr unsigned kNoExceptions = 0x1f80, kZeroOnBothSides = 0x8040;
    _mm_setcsr(kNoExceptions | kZeroOnBothSides);
  }
  RoundAsTiles(const RoundAsTiles&) = delete;
  ~RoundAsTiles() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

using avx512::Vector;

// Words of 32 columns, of which the even and the odd ones are summed apart.
struct Columns {
  __m512 even, odd;
};

[[MG_AVX512]] inline __m512 even_of(Vector words) { return reinterpret_cast<__m512>(words << 16); }
[[MG_AVX512]] inline __m512 odd_of(Vector words) {
  return reinterpret_cast<__m512>(words & -0x10000);
}
// 32 elements of a row of b, of which those whose bit in `held` is set exist.
[[MG_AVX512]] inline Columns load_columns(const std::byte* row, uint32_t held) {
  const auto words = reinterpret_cast<Vector>(_mm512_maskz_loadu_epi16(held, row));
  return {even_of(words), odd_of(words)};
}

// Moves sums between memory and vectors of even and odd columns.
[[MG_AVX512]] inline Columns load_sums(const float* c) {
  const __m512 a = _mm512_loadu_ps(c), b = _mm512_loadu_ps(c + 16);
  return {__builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
          __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)};
}
[[MG_AVX512]] inline void store_columns(const Columns& sums, float* c) {
  const __m512 a = sums.even, b = sums.odd;
  _mm512_storeu_ps(
      c, __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
  _mm512_storeu_ps(c + 16, __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                                   29, 14, 30, 15, 31));
}

// The elements of a that multiply a step's rows of b, even ones and odd ones.
struct Factors {
  alignas(64) float even[kRowWords], odd[kRowWords];
};

// M rows and the columns [j, j + 32 * Parts) of a b.
template <int64_t M, int64_t Parts>
[[MG_AVX512]] void multiply_part(const FewRowsProduct& p, int64_t i, int64_t j) {
  constexpr int64_t kStep = 2 * kRowWords;
  const int64_t stride = p.b.stride * 2, width = words(WordKind::bf16_amx, p.elements);
  const std::byte* row = p.b.base + j * 2;
  const uint32_t* a = p.a + i * p.a_row;
  float* const c = p.c + i * p.ldc + j;
  uint32_t held[Parts];
  Columns sums[M][Parts];
  for (int64_t part = 0; part < Parts; ++part) {
    const int64_t columns = std::clamp<int64_t>(p.n - j - part * kPanel, 0, kPanel);
    held[part] = static_cast<uint32_t>((uint64_t{1} << columns) - 1);
    for (int64_t r = 0; r < M; ++r)
      sums[r][part] = p.accumulate ? load_sums(c + r * p.ldc + part * kPanel) : Columns{};
  }
  for (int64_t k = 0; k < p.elements; k += kStep, a += kRowWords) {
    Factors factors[M];
    const auto there = static_cast<__mmask16>((1u << std::min(width - k / 2, kRowWords)) - 1);
    for (int64_t r = 0; r < M; ++r) {
      const auto pairs = reinterpret_cast<Vector>(_mm512_maskz_loadu_epi32(there, a + r * p.a_row));
      _mm512_store_ps(factors[r].even, even_of(pairs));
      _mm512_store_ps(factors[r].odd, odd_of(pairs));
    }
    Columns even[M][Parts] = {}, odd[M][Parts] = {};
    const auto add_row = [&](const auto& of, Columns(&to)[M][Parts],
                             int64_t l) __attribute__((target("avx512f,avx512bw"), always_inline)) {
#pragma GCC unroll 2
      for (int64_t part = 0; part < Parts; ++part) {
        const Columns b = load_columns(row + part * kPanel * 2, held[part]);
#pragma GCC unroll 4
        for (int64_t r = 0; r < M; ++r) {
          const __m512 factor = _mm512_set1_ps(of(factors[r])[l]);
          to[r][part].even = _mm512_fmadd_ps(factor, b.even, to[r][part].even);
          to[r][part].odd = _mm512_fmadd_ps(factor, b.odd, to[r][part].odd);
        }
      }
      row += stride;
    };
    const int64_t count = std::min(kStep, p.elements - k);
    for (int64_t l = 0; l < count / 2; ++l) {
      if (i == 0 && p.meanwhile != nullptr && l % 2 == 0)
        (*p.meanwhile)(std::min<int64_t>(4, count - 2 * l) * Parts);
      add_row([](const Factors& f) { return f.even; }, even, l);
      add_row([](const Factors& f) { return f.odd; }, odd, l);
    }
    if (count % 2 != 0) add_row([](const Factors& f) { return f.even; }, even, count / 2);
#pragma GCC unroll 2
    for (int64_t part = 0; part < Parts; ++part) {
#pragma GCC unroll 4
      for (int64_t r = 0; r < M; ++r) {
        sums[r][part].even += even[r][part].even + odd[r][part].even;
        sums[r][part].odd += even[r][part].odd + odd[r][part].odd;
      }
    }
  }
  for (int64_t part = 0; part < Parts; ++part)
    for (int64_t r = 0; r < M; ++r) store_columns(sums[r][part], c + r * p.ldc + part * kPanel);
}

// Up to two parts of columns, as registers hold them.
template <int64_t M>
void multiply_rows(const FewRowsProduct& p, int64_t i) {
  constexpr int64_t kParts = M <= 2 ? 2 : 1;
  int64_t j = 0;
  for (; j + (kParts - 1) * kPanel < p.n; j += kParts * kPanel) multiply_part<M, kParts>(p, i, j);
  if (j < p.n) multiply_part<M, 1>(p, i, j);
}

[[gnu::noinline]] void multiply_all_rows(const FewRowsProduct& p) {
  constexpr int64_t kRowsAtOnce = 4;
  for (int64_t i = 0; i < p.m; i += kRowsAtOnce)
    with_rows<kRowsAtOnce>(std::min(kRowsAtOnce, p.m - i),
                           [&](auto rows) { multiply_rows<rows()>(p, i); });
}

}  // namespace

void few_rows_product_nt_amx(const FewRowsProduct& p) {
  const int64_t most = 2 * (FewRows::kMaxWords / p.m / kRowWords * kRowWords);
  for (int64_t k = 0; k < p.elements; k += most) {
    FewRowsProduct part = p;
    part.elements = std::min(most, p.elements - k);
    part.a += k / 2;
    part.b.base += k * 2;
    part.accumulate = p.accumulate || k > 0;
    FewRows(part).run();
  }
}

void few_rows_product_nn_amx(const FewRowsProduct& p) {
  const RoundAsTiles round_as_tiles;
  multiply_all_rows(p);
}

#undef MG_AVX512

#else

void few_rows_product_nt_amx(const FewRowsProduct&) { MG_ASSERT(false); }
void few_rows_product_nn_amx(const FewRowsProduct&) { MG_ASSERT(false); }

#endif

}  // namespace megatron::kernels::cpu
