#include "kernels/cpu/products/amx_block.h"

#include <algorithm>

#include "base/divide.h"
#include "base/error.h"
#include "kernels/cpu/products/amx_products.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/thread_buffer.h"

#if defined(__x86_64__)
#include "kernels/cpu/products/amx_strip.h"
#endif

namespace megatron::kernels::cpu {

namespace {

// A packed depth of b fills 787 KB of the L2 cache. Sums of a block that is cut in several depths
// take as much; those of a single depth only the rows of a strip.
constexpr int64_t kBlockColumns = 384, kPartRows = 512, kBlockRows = 1024;
constexpr int64_t kSumStride = kBlockColumns + 16;

// Words of a part if `words` are divided into as few similar parts of up to `most` as possible, in
// multiples of a tile's words.
int64_t part_words(int64_t words, int64_t most) {
  return round_up(ceil_div(words, ceil_div(words, most)), int64_t{16});
}

}  // namespace

BlockSize largest_amx_block(int64_t elements) {
  return {words(WordKind::bf16_amx, elements) <= kAmxDepth ? kBlockRows : kPartRows, kBlockColumns};
}
int64_t amx_column_bytes() { return kBlockColumns / kPanel * kAmxPanelWords * 4; }
int64_t amx_sum_bytes() { return kPartRows * kSumStride * 4; }

#if defined(__x86_64__)

namespace {

// Processes one depth of k at a time: packs the columns of b once, and for each strip of 32 rows of
// a one slice after the other, which stays in the L1 cache while the panels of b pass by from the
// L2 cache. The sums of the strip stay in the L1 and L2 cache.
class AmxBlock {
 public:
  AmxBlock(const Problem& p, const Block& block)
      : p_(p),
        block_(block),
        rows_(reinterpret_cast<uint32_t*>(thread_buffer(Slot::a, kAmxRowBytes))),
        panels_(reinterpret_cast<uint32_t*>(thread_buffer(Slot::b, amx_column_bytes()))),
        sums_(reinterpret_cast<float*>(thread_buffer(Slot::c, amx_sum_bytes()))) {
    MG_ASSERT(block.n <= kBlockColumns);
  }

  void run() {
    const int64_t depth = 2 * part_words(words(WordKind::bf16_amx, block_.depth), kAmxDepth);
    const bool one = depth >= block_.depth;
    MG_ASSERT(one || block_.m <= kPartRows);
    for (int64_t k = 0; k < block_.depth; k += depth) {
      const Range part{k, std::min(k + depth, block_.depth)};
      pack_columns(part);
      for (int64_t i = 0; i < block_.m; i += kAmxStrip) {
        const Block strip = rows_from(i);
        float* sums = sums_ + (one ? 0 : i * kSumStride);
        multiply(strip, part, sums);
        if (part.end == block_.depth) store(strip, sums);
      }
    }
  }

 private:
  Block rows_from(int64_t i) const {
    Block strip = block_;
    strip.i += i;
    strip.m = std::clamp<int64_t>(block_.m - i, 0, kAmxStrip);
    return strip;
  }

  void pack_columns(const Range& part) {
    const std::byte* b = b_at(p_, block_, part.begin);
    const MatrixRows from{b, p_.ldb, p_.in};
    const int64_t depth = part.size();
    if (!p_.transpose_b) {
      return rows_to_panels(WordKind::bf16_amx, from, depth, round_up(depth, int64_t{2}), block_.n,
                            kAmxPanelWords, panels_);
    }
    const int64_t panel_bytes = kPanel * p_.ldb * 2;
    for (int64_t j = 0; j < block_.n; j += kPanel, b += panel_bytes) {
      const bool ahead = j + 2 * kPanel <= block_.n;
      pairs_to_panel({b, p_.ldb, p_.in}, std::min(kPanel, block_.n - j), depth,
                     ahead ? b + panel_bytes : nullptr, panels_ + j / kPanel * kAmxPanelWords);
    }
  }

  void pack_rows(const Block& strip, const Range& slice) {
    const MatrixRows from{a_at(p_, strip, slice.begin), p_.lda, p_.in};
    p_.transpose_a ? columns_to_tiles(from, slice.size(), strip.m, rows_)
                   : rows_to_tiles(from, strip.m, slice.size(), rows_);
  }

  // Rows of a that the strip reads.
  RowsAhead rows_of(const Block& strip, const Range& slice) const {
    if (strip.m == 0 || slice.size() <= 0) return {};
    const std::byte* a = a_at(p_, strip, slice.begin);
    return p_.transpose_a ? RowsAhead(a, slice.size(), strip.m * 2, p_.lda * 2)
                          : RowsAhead(a, strip.m, slice.size() * 2, p_.lda * 2);
  }
  RowsAhead results_of(const Block& strip) const {
    const int64_t size = size_of(p_.result);
    return RowsAhead(out_at(p_, strip), strip.m, strip.n * size, p_.ldc * size);
  }

  // Prefetches the next strip of a meanwhile, and the results before they are stored.
  void multiply(const Block& strip, const Range& part, float* sums) {
    const int64_t panels = ceil_div(block_.n, kPanel);
    const Block next = rows_from(strip.i - block_.i + kAmxStrip);
    const int64_t step = 2 * part_words(words(WordKind::bf16_amx, part.size()), kAmxSlice);
    for (int64_t k = part.begin; k < part.end; k += step) {
      const Range slice{k, std::min(k + step, part.end)};
      pack_rows(strip, slice);
      RowsAhead rows = rows_of(next, slice);
      RowsAhead results = slice.end == block_.depth ? results_of(strip) : RowsAhead();
      const int64_t share = ceil_div(rows.all(), panels),
                    result_share = ceil_div(results.all(), panels);
      amx::multiply_words<true>({.a = rows_,
                                 .a_row = 16,
                                 .a_below = 256,
                                 .a_step = kAmxStepWords,
                                 .steps = 0,
                                 .b = panels_ + (k - part.begin) / 2 * kPanel,
                                 .panel = kAmxPanelWords,
                                 .c = sums,
                                 .ldc = kSumStride,
                                 .n = round_up(block_.n, kPanel),
                                 .accumulate = k > 0},
                                strip.m, words(WordKind::bf16_amx, slice.size()), tiles_,
                                [&](int64_t) {
                                  rows.lines(share);
                                  results.lines(result_share);
                                });
    }
  }

  void store(const Block& strip, const float* sums) const {
    store_sums({.rows = strip.m,
                .columns = strip.n,
                .sums = sums,
                .sums_stride = kSumStride,
                .bias = bias_at(p_, strip),
                .bias_type = p_.bias_type,
                .accumulate = p_.accumulate,
                .out = out_at(p_, strip),
                .out_stride = p_.ldc,
                .out_type = p_.result});
  }

  const Problem& p_;
  const Block& block_;
  uint32_t *rows_, *panels_;
  float* sums_;
  amx::Tiles tiles_;
};

}  // namespace

void amx_block(const Problem& problem, const Block& block) { AmxBlock(problem, block).run(); }

#else

void amx_block(const Problem&, const Block&) { MG_ASSERT(false); }

#endif

}  // namespace megatron::kernels::cpu
