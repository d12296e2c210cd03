#include "kernels/cpu/products/amx_block.h"

#include <algorithm>

#include "base/divide.h"
#include "base/error.h"
#include "kernels/cpu/products/amx_products.h"
#include "kernels/cpu/rows_ahead.h"

#if defined(__x86_64__)
#include "kernels/cpu/products/amx_strip.h"
#endif

namespace megatron::kernels::cpu {

namespace {

constexpr int64_t kSumStride = kAmxColumns + 16;

// Words of a part if `words` are divided into as few similar parts of up to `most` as possible, in
// multiples of a tile's words.
int64_t part_words(int64_t words, int64_t most) {
  return round_up(ceil_div(words, ceil_div(words, most)), int64_t{16});
}

}  // namespace

#if defined(__x86_64__)

namespace {

// Processes one part of k at a time. The columns of b are packed for it once and stay in the L2
// cache. Each strip of 32 rows of a is multiplied with them one slice of the part after the other;
// the slice stays in the L1 cache while the panels of b pass by. The sums of one strip are in
// cache, those of the whole block are only kept if k has several parts.
class AmxBlock {
 public:
  AmxBlock(const Problem& p, const Block& block)
      : p_(p), block_(block), buffers_(product_buffers()) {
    MG_ASSERT(block.m <= kAmxRows && block.n <= kAmxColumns);
  }

  void run() {
    const int64_t depth = 2 * part_words(words(WordKind::bf16_amx, block_.depth), kAmxDepth);
    const bool one = depth >= block_.depth;
    for (int64_t k = 0; k < block_.depth; k += depth) {
      const Range part{k, std::min(k + depth, block_.depth)};
      pack_columns(part);
      for (int64_t i = 0; i < block_.m; i += kAmxStrip) {
        const Block strip = rows_from(i);
        float* sums = buffers_.sums + (one ? 0 : i * kSumStride);
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
      return pairs_to_panels(from, depth, block_.n, kAmxPanelWords, buffers_.panels);
    }
    const int64_t panel_bytes = kPanel * p_.ldb * 2;
    for (int64_t j = 0; j < block_.n; j += kPanel, b += panel_bytes) {
      const bool ahead = j + 2 * kPanel <= block_.n;
      pairs_to_panel({b, p_.ldb, p_.in}, std::min(kPanel, block_.n - j), depth,
                     ahead ? b + panel_bytes : nullptr,
                     buffers_.panels + j / kPanel * kAmxPanelWords);
    }
  }

  void pack_rows(const Block& strip, const Range& slice) {
    const MatrixRows from{a_at(p_, strip, slice.begin), p_.lda, p_.in};
    p_.transpose_a ? columns_to_tiles(from, slice.size(), strip.m, buffers_.rows)
                   : rows_to_tiles(from, strip.m, slice.size(), buffers_.rows);
  }

  // True if tiles can be loaded from rows of a in place: whole words of whole tiles, at cache
  // lines, and rows that do not share a few sets of the L1 cache.
  bool lies_well(const Block& strip, const Range& slice) const {
    constexpr int64_t kElements = 32, kSets = 64;  // elements of a line, sets of a page
    if (p_.transpose_a || slice.size() % kElements != 0 || p_.lda % kElements != 0) return false;
    if (p_.lda / kElements % (kSets / 2) == 0) return false;
    return reinterpret_cast<uintptr_t>(a_at(p_, strip, slice.begin)) % 64 == 0;
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
    const int64_t step = 2 * part_words(words(WordKind::bf16_amx, part.size()), kAmxSlice);
    const int64_t steps = panels * std::max<int64_t>(1, part.size() / 32);
    RowsAhead rows = rows_of(rows_from(strip.i - block_.i + kAmxStrip), part);
    RowsAhead results = part.end == block_.depth ? results_of(strip) : RowsAhead();
    const int64_t share = ceil_div(rows.all(), steps),
                  result_share = ceil_div(results.all(), steps);
    for (int64_t k = part.begin; k < part.end; k += step) {
      const Range slice{k, std::min(k + step, part.end)};
      const bool in_place = lies_well(strip, slice);
      if (!in_place) pack_rows(strip, slice);
      const auto* there = reinterpret_cast<const uint32_t*>(a_at(p_, strip, slice.begin));
      amx::multiply_words<true>({.a = in_place ? there : buffers_.rows,
                                 .a_row = in_place ? p_.lda / 2 : 16,
                                 .a_below = in_place ? 8 * p_.lda : 256,
                                 .a_step = in_place ? 16 : kAmxStepWords,
                                 .steps = 0,
                                 .b = buffers_.panels + (k - part.begin) / 2 * kPanel,
                                 .panel = kAmxPanelWords,
                                 .c = sums,
                                 .ldc = kSumStride,
                                 .n = round_up(block_.n, kPanel),
                                 .accumulate = k > 0},
                                strip.m, words(WordKind::bf16_amx, slice.size()), tiles_,
                                [&](int quarter) {
                                  if (quarter > 0) return;
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
                .factor = static_cast<float>(p_.factor),
                .bias = bias_at(p_, strip),
                .bias_type = p_.bias_type,
                .accumulate = p_.accumulate,
                .out = out_at(p_, strip),
                .out_stride = p_.ldc,
                .out_type = p_.result});
  }

  const Problem& p_;
  const Block& block_;
  const ProductBuffers buffers_;
  amx::Tiles tiles_;
};

}  // namespace

void amx_block(const Problem& problem, const Block& block) { AmxBlock(problem, block).run(); }

#else

void amx_block(const Problem&, const Block&) { MG_ASSERT(false); }

#endif

}  // namespace megatron::kernels::cpu
