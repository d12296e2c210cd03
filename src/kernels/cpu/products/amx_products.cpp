#include "kernels/cpu/products/amx_products.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/products/amx.h"
#include "kernels/cpu/products/panels.h"
#include "kernels/cpu/products/transpose16.h"
#include "kernels/cpu/rows_ahead.h"

namespace megatron::kernels::cpu {

#if defined(__x86_64__)

namespace {

using amx::kRows;
using amx::kRowWords;
using avx512::Vector;

// Use of the eight tiles: sums of two tiles of rows by two of columns, and their operands.
constexpr int kSums00 = 0, kSums01 = 1, kSums10 = 2, kSums11 = 3;
constexpr int kRows0 = 4, kRows1 = 5, kColumns0 = 6, kColumns1 = 7;

// Tile configuration of a call, loaded again only if a shape changes. Rows of the second operand:
// `words`.
class Tiles {
 public:
  Tiles() = default;
  Tiles(const Tiles&) = delete;
  ~Tiles() {
    if (rows_ > 0) amx::release();
  }

  // Configures products of up to 16 `rows` rows of `words` words with two tiles of `columns`
  // columns.
  void shape(int64_t rows, int64_t words, int64_t columns = kRows) {
    if (rows == rows_ && words == words_ && columns == columns_) return;
    rows_ = rows;
    words_ = words;
    columns_ = columns;
    const int64_t first = std::min(rows, kRows), second = rows - first;
    amx::Shapes shapes;
    shapes.set(kSums00, first, columns);
    shapes.set(kSums01, first, columns);
    shapes.set(kSums10, second, columns);
    shapes.set(kSums11, second, columns);
    shapes.set(kRows0, first, words);
    shapes.set(kRows1, second, words);
    shapes.set(kColumns0, words, columns);
    shapes.set(kColumns1, words, columns);
    amx::configure(shapes);
  }

 private:
  int64_t rows_ = 0, words_ = 0, columns_ = 0;
};

// Up to kAmxStrip rows of a, and how they are summed.
struct Strip {
  const uint32_t* a;
  int64_t a_row;
  int64_t steps;  // steps of 16 words, or a single shorter one
  const uint32_t* b;
  float* c;
  bool accumulate;
};

// Multiplies a strip of more than 16 rows (kTwo) or fewer with all panels of b.
template <bool kTwo>
void multiply_strip(const TileProduct& p, const Strip& strip) {
  constexpr int64_t kPanelRow = kPanel * 4;
  const int64_t a_stride = strip.a_row * 4, c_stride = p.ldc * 4, steps = strip.steps;
  for (int64_t j = 0; j < p.n; j += kPanel) {
    float* const c = strip.c + j;
    float* const below = c + kRows * p.ldc;
    if (strip.accumulate) {
      amx::load<kSums00>(c, c_stride);
      amx::load<kSums01>(c + kRows, c_stride);
      if constexpr (kTwo) {
        amx::load<kSums10>(below, c_stride);
        amx::load<kSums11>(below + kRows, c_stride);
      }
    } else {
      amx::zero<kSums00>();
      amx::zero<kSums01>();
      if constexpr (kTwo) {
        amx::zero<kSums10>();
        amx::zero<kSums11>();
      }
    }
    const uint32_t *a = strip.a, *a_below = a + kRows * strip.a_row;
    const uint32_t *b = strip.b + j / kPanel * p.panel, *b_right = b + kRows;
    for (int64_t step = 0; step < steps; ++step) {
      amx::load<kColumns0>(b, kPanelRow);
      amx::load<kRows0>(a, a_stride);
      amx::multiply<kSums00, kRows0, kColumns0>();
      amx::load<kColumns1>(b_right, kPanelRow);
      amx::multiply<kSums01, kRows0, kColumns1>();
      if constexpr (kTwo) {
        amx::load<kRows1>(a_below, a_stride);
        amx::multiply<kSums10, kRows1, kColumns0>();
        amx::multiply<kSums11, kRows1, kColumns1>();
      }
      a += kRowWords;
      a_below += kRowWords;
      b += kRowWords * kPanel;
      b_right += kRowWords * kPanel;
    }
    amx::store<kSums00>(c, c_stride);
    amx::store<kSums01>(c + kRows, c_stride);
    if constexpr (kTwo) {
      amx::store<kSums10>(below, c_stride);
      amx::store<kSums11>(below + kRows, c_stride);
    }
  }
}

// Multiplies words [begin, begin + words) of a strip: whole steps, then the remainder.
void multiply_words(const TileProduct& p, Strip strip, int64_t rows, int64_t words, Tiles& tiles) {
  const int64_t whole = words / kRowWords, left = words % kRowWords;
  const auto run = [&](int64_t steps, int64_t step_words) {
    strip.steps = steps;
    tiles.shape(rows, step_words);
    rows > kRows ? multiply_strip<true>(p, strip) : multiply_strip<false>(p, strip);
    strip.a += steps * kRowWords;
    strip.b += steps * kRowWords * kPanel;
    strip.accumulate = true;
  };
  if (whole > 0) run(whole, kRowWords);
  if (left > 0) run(1, left);
}

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
    Strip strip{.a = p.a + i * p.a_row,
                .a_row = p.a_row,
                .steps = 0,
                .b = p.b,
                .c = p.c + i * p.ldc,
                .accumulate = p.accumulate};
    if (p.a_step == 1) {
      multiply_words(p, strip, rows, p.k, tiles);
      continue;
    }
    MG_ASSERT(p.a_row == 1 && p.k <= kAmxTurnedWords);
    alignas(64) uint32_t turned[kAmxStrip * kAmxTurnedWords];
    turn_rows(strip.a, p.a_step, rows, p.k, turned);
    strip.a = turned;
    strip.a_row = kAmxTurnedWords;
    multiply_words(p, strip, rows, p.k, tiles);
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
