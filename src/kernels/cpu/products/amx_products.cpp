#include "kernels/cpu/products/amx_products.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/products/amx_strip.h"
#include "kernels/cpu/products/panels.h"
#include "kernels/cpu/products/transpose16.h"
#include "kernels/cpu/rows_ahead.h"

namespace megatron::kernels::cpu {

#if defined(__x86_64__)

namespace {

using amx::kColumns0;
using amx::kRows;
using amx::kRows0;
using amx::kRows1;
using amx::kRowWords;
using amx::kSums00;
using amx::kSums10;
using amx::Tiles;
using avx512::Vector;

// out[r * kAmxTurnedWords + l] = word l of row r; 0 up to a multiple of 16 words.
[[gnu::target("avx512f")]] void turn_rows(const uint32_t* a, int64_t a_step, int64_t rows,
                                          int64_t words, uint32_t* out) {
  for (int64_t r = 0; r < rows; r += kRows, a += kRows, out += kRows * kAmxTurnedWords) {
    const auto held = static_cast<__mmask16>((1u << std::min(rows - r, kRows)) - 1);
    for (int64_t l = 0; l < words; l += kRowWords) {
      Vector t[16];
      for (int64_t i = 0; i < 16; ++i) {
        const __mmask16 lanes = l + i < words ? held : __mmask16{0};
        t[i] = reinterpret_cast<Vector>(_mm512_maskz_loadu_epi32(lanes, a + (l + i) * a_step));
      }
      avx512::transpose16(t);
      for (int64_t i = 0; i < 16; ++i)
        _mm512_store_si512(out + i * kAmxTurnedWords + l, reinterpret_cast<__m512i>(t[i]));
    }
  }
}

}  // namespace

void tile_product_amx(const TileProduct& p) {
  Tiles tiles;
  for (int64_t i = 0; i < p.m; i += kAmxStrip) {
    const int64_t rows = std::min(kAmxStrip, p.m - i);
    amx::Strip strip{.a = p.a + i * p.a_row,
                     .a_row = p.a_row,
                     .a_below = kRows * p.a_row,
                     .a_step = kRowWords,
                     .steps = 0,
                     .b = p.b,
                     .panel = p.panel,
                     .c = p.c + i * p.ldc,
                     .ldc = p.ldc,
                     .n = p.n,
                     .accumulate = p.accumulate};
    alignas(64) uint32_t turned[kAmxStrip * kAmxTurnedWords];
    if (p.a_step != 1) {
      MG_ASSERT(p.a_row == 1 && p.k <= kAmxTurnedWords);
      turn_rows(strip.a, p.a_step, rows, p.k, turned);
      strip.a = turned;
      strip.a_row = kAmxTurnedWords;
      strip.a_below = kRows * kAmxTurnedWords;
    }
    amx::multiply_words<false>(strip, rows, p.k, tiles, [] {});
  }
}

namespace {

// Few rows take the role of columns: rows of b are the first operand, read in place, 32 at a time,
// and the sums come out transposed.
class FewRows {
 public:
  static constexpr int64_t kMaxWords = 8192;  // over all rows of a

  explicit FewRows(const FewRowsProduct& p)
      : p_(p), width_(words(WordKind::bf16_amx, p.elements)), stride_(p.b.stride * 2) {
    turn();
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
  // turned_[l * m + i] = word l of row i.
  void turn() {
    for (int64_t l = 0; l < width_; ++l)
      for (int64_t i = 0; i < p_.m; ++i) turned_[l * p_.m + i] = p_.a[i * p_.a_row + l];
  }

  RowsAhead ahead(int64_t j) const {
    return RowsAhead(p_.b.base + j * stride_, std::clamp<int64_t>(p_.n - j, 0, kAmxStrip),
                     p_.elements * 2, stride_);
  }

  // Sums of the rows [j, j + rows) of b, [rows][16], read from and written to c.
  void take_sums(int64_t j, int64_t rows, float* sums) const {
    for (int64_t i = 0; i < p_.m; ++i)
      for (int64_t r = 0; r < rows; ++r) sums[r * kRows + i] = p_.c[i * p_.ldc + j + r];
  }
  void put_sums(int64_t j, int64_t rows, const float* sums) const {
    for (int64_t i = 0; i < p_.m; ++i)
      for (int64_t r = 0; r < rows; ++r) p_.c[i * p_.ldc + j + r] = sums[r * kRows + i];
  }

  template <bool kTwo>
  static void load_sums(const float* sums) {
    amx::load<kSums00>(sums, kRows * 4);
    if constexpr (kTwo) amx::load<kSums10>(sums + kRows * kRows, kRows * 4);
  }
  template <bool kTwo>
  static void store_sums(float* sums) {
    amx::store<kSums00>(sums, kRows * 4);
    if constexpr (kTwo) amx::store<kSums10>(sums + kRows * kRows, kRows * 4);
  }
  template <bool kTwo>
  static void step(const std::byte* b, int64_t stride, const uint32_t* a, int64_t a_stride) {
    amx::load<kColumns0>(a, a_stride);
    amx::load<kRows0>(b, stride);
    amx::multiply<kSums00, kRows0, kColumns0>();
    if constexpr (kTwo) {
      amx::load<kRows1>(b + kRows * stride, stride);
      amx::multiply<kSums10, kRows1, kColumns0>();
    }
  }

  template <bool kTwo>
  void multiply(int64_t j, int64_t rows) {
    constexpr int64_t kStepBytes = kRowWords * 4;
    alignas(64) float sums[kAmxStrip * kRows];
    tiles_.shape(rows, kRowWords, p_.m);
    if (p_.accumulate) {
      take_sums(j, rows, sums);
      load_sums<kTwo>(sums);
    } else {
      amx::zero<kSums00>();
      if constexpr (kTwo) amx::zero<kSums10>();
    }
    const std::byte* b = p_.b.base + j * stride_;
    const uint32_t* a = turned_;
    const int64_t a_stride = p_.m * 4, whole = p_.elements * 2 / kStepBytes;
    RowsAhead next = ahead(j + kAmxStrip);
    for (int64_t s = 0; s < whole; ++s, b += kStepBytes, a += kRowWords * p_.m) {
      next.lines(kAmxStrip);
      step<kTwo>(b, stride_, a, a_stride);
    }
    store_sums<kTwo>(sums);
    if (const int64_t left = width_ - whole * kRowWords; left > 0) {
      // Memory after the end of a row must not enter the product.
      alignas(64) std::byte ends[kAmxStrip * kStepBytes] = {};
      const auto bytes = static_cast<size_t>(p_.elements * 2 - whole * kStepBytes);
      for (int64_t r = 0; r < rows; ++r) std::memcpy(ends + r * kStepBytes, b + r * stride_, bytes);
      tiles_.shape(rows, left, p_.m);
      load_sums<kTwo>(sums);
      step<kTwo>(ends, kStepBytes, a, a_stride);
      store_sums<kTwo>(sums);
    }
    put_sums(j, rows, sums);
  }

  const FewRowsProduct& p_;
  int64_t width_, stride_;
  alignas(64) uint32_t turned_[kMaxWords];
  Tiles tiles_;
};

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
  // Block of b that fits the L1 cache in panels.
  constexpr int64_t kElements = 128, kColumns = 128;
  static_assert(kElements % kChainCut == 0);
  alignas(64) uint32_t panels[words(WordKind::bf16_amx, kElements) * kColumns];
  for (int64_t j = 0; j < p.n; j += kColumns) {
    const int64_t columns = std::min(kColumns, p.n - j);
    for (int64_t k = 0; k < p.elements; k += kElements) {
      const int64_t rows = std::min(kElements, p.elements - k);
      const int64_t width = words(WordKind::bf16_amx, rows), panel = width * kPanel;
      const MatrixRows part{p.b.base + (k * p.b.stride + j) * 2, p.b.stride, DType::bf16};
      rows_to_panels(WordKind::bf16_amx, part, rows, 2 * width, columns, panel, panels);
      tile_product_amx({.m = p.m,
                        .n = round_up(columns, kPanel),
                        .k = width,
                        .a = p.a + k / 2,
                        .a_row = p.a_row,
                        .a_step = 1,
                        .b = panels,
                        .panel = panel,
                        .c = p.c + j,
                        .ldc = p.ldc,
                        .accumulate = p.accumulate || k > 0});
    }
  }
}

#else

void tile_product_amx(const TileProduct&) { MG_ASSERT(false); }
void few_rows_product_nt_amx(const FewRowsProduct&) { MG_ASSERT(false); }
void few_rows_product_nn_amx(const FewRowsProduct&) { MG_ASSERT(false); }

#endif

}  // namespace megatron::kernels::cpu
