#include "kernels/cpu/products/amx_few_rows.h"

#include <algorithm>
#include <cstring>

#include "base/divide.h"
#include "base/error.h"
#include "kernels/cpu/products/amx_block.h"
#include "kernels/cpu/products/amx_pack.h"
#include "kernels/cpu/products/amx_products.h"
#include "kernels/cpu/products/block_size.h"
#include "kernels/cpu/rows_ahead.h"

#if defined(__x86_64__)
#include "kernels/cpu/products/amx_strip.h"
#endif

namespace megatron::kernels::cpu {

namespace {

constexpr int64_t kMostFewRows = 64;

}  // namespace

bool takes_amx_few_rows(const Problem& p, const Block& block) {
  return !p.transpose_a && p.transpose_b && block.m <= kMostFewRows && p.ldb % 2 == 0;
}

#if defined(__x86_64__)

namespace {

// Rows of b take the place of rows and are loaded in place, 32 at a time; a is packed as panels of
// columns. The sums come out transposed, [n][m].
class AmxFewRows {
 public:
  AmxFewRows(const Problem& p, const Block& block)
      : p_(p),
        block_(block),
        buffers_(product_buffers()),
        columns_(round_up(block.m, kPanel)),
        stride_(columns_ + 16) {
    MG_ASSERT(block.m <= kMostFewRows && block.n <= kAmxColumns);
  }

  void run() {
    for (int64_t k = 0; k < block_.depth; k += kPart) {
      const Range part{k, std::min(k + kPart, block_.depth)};
      pack_rows(part);
      for (int64_t j = 0; j < block_.n; j += kAmxStrip) multiply(j, part);
    }
    transpose_sums(buffers_.sums, stride_, block_.n, block_.m, results(), kResultStride);
    store_sums({.rows = block_.m,
                .columns = block_.n,
                .sums = results(),
                .sums_stride = kResultStride,
                .factor = static_cast<float>(p_.factor),
                .bias = bias_at(p_, block_),
                .bias_type = p_.bias_type,
                .accumulate = p_.accumulate,
                .out = out_at(p_, block_),
                .out_stride = p_.ldc,
                .out_type = p_.result});
  }

 private:
  // Elements of k for which rows of a are packed at a time: 256 KB for 32 rows.
  static constexpr int64_t kPart = 4096, kPanelWords = kPart / 2 * kPanel + 16;
  static constexpr int64_t kStepElements = 32, kResultStride = kAmxColumns + 16;
  static_assert(kMostFewRows / kPanel * kPanelWords * 4 <= kAmxColumnBytes &&
                kAmxColumns * (kMostFewRows + 16) + kMostFewRows * kResultStride <=
                    kAmxSumBytes / 4);

  // The sums, [m][n], after the transposed ones.
  float* results() const { return buffers_.sums + kAmxColumns * (kMostFewRows + 16); }

  void pack_rows(const Range& part) {
    const std::byte* a = a_at(p_, block_, part.begin);
    for (int64_t i = 0; i < block_.m; i += kPanel, a += kPanel * p_.lda * 2) {
      pairs_to_panel({a, p_.lda, p_.in}, std::min(kPanel, block_.m - i), part.size(), nullptr,
                     buffers_.panels + i / kPanel * kPanelWords);
    }
  }

  const std::byte* rows_at(int64_t j, int64_t k) const {
    Block right = block_;
    right.j += j;
    return b_at(p_, right, k);
  }

  // Prefetches the next rows of b meanwhile, a quarter of a step's at a time: many at once would
  // fill the buffers that the loads of tiles need as well.
  void multiply(int64_t j, const Range& part) {
    const int64_t rows = std::min(kAmxStrip, block_.n - j), stride = p_.ldb * 2;
    const int64_t whole = part.size() / kStepElements * kStepElements;
    const int64_t steps = std::max<int64_t>(1, 4 * whole / kStepElements * (columns_ / kPanel));
    // After the last rows of the block, those of the next one.
    const int64_t after = std::min(kAmxStrip, p_.n - block_.j - j - rows);
    RowsAhead next(rows_at(j + rows, part.begin), after, part.size() * 2, stride);
    const int64_t share = ceil_div(next.all(), steps);
    amx::Strip strip{.a = reinterpret_cast<const uint32_t*>(rows_at(j, part.begin)),
                     .a_row = p_.ldb / 2,
                     .a_below = amx::kRows * p_.ldb / 2,
                     .a_step = amx::kRowWords,
                     .steps = 0,
                     .b = buffers_.panels,
                     .panel = kPanelWords,
                     .c = buffers_.sums + j * stride_,
                     .ldc = stride_,
                     .n = columns_,
                     .accumulate = part.begin > 0};
    amx::multiply_words<false>(strip, rows, whole / 2, tiles_, [&](int) { next.lines(share); });
    if (whole == part.size()) return;
    // Memory after the end of a row must not enter the product.
    alignas(64) uint32_t ends[kAmxStrip * amx::kRowWords] = {};
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(ends + r * amx::kRowWords, rows_at(j + r, part.begin + whole),
                  static_cast<size_t>(part.size() - whole) * 2);
    }
    strip.skip(whole / kStepElements);
    strip.accumulate = part.begin + whole > 0;
    strip.a = ends;
    strip.a_row = amx::kRowWords;
    strip.a_below = amx::kRows * amx::kRowWords;
    amx::multiply_words<false>(strip, rows, words(WordKind::bf16_amx, part.size() - whole), tiles_,
                               [](int) {});
  }

  const Problem& p_;
  const Block& block_;
  const ProductBuffers buffers_;
  int64_t columns_;  // rows of a, padded to whole panels
  int64_t stride_;   // floats from one row of transposed sums to the next
  amx::Tiles tiles_;
};

}  // namespace

void amx_few_rows_block(const Problem& problem, const Block& block) {
  AmxFewRows(problem, block).run();
}

#else

void amx_few_rows_block(const Problem&, const Block&) { MG_ASSERT(false); }

#endif

}  // namespace megatron::kernels::cpu
