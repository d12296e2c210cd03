#include "kernels/cpu/products/problem.h"

#include <algorithm>
#include <vector>

#include "base/divide.h"
#include "kernels/cpu/products/amx_block.h"
#include "kernels/cpu/products/amx_few_rows.h"
#include "kernels/cpu/products/amx_products.h"
#include "kernels/cpu/products/bf16_products.h"
#include "kernels/cpu/products/block.h"
#include "kernels/cpu/products/block_size.h"
#include "kernels/cpu/products/double_product.h"
#include "kernels/cpu/products/few_rows.h"
#include "kernels/cpu/products/panels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/thread_buffer.h"

namespace megatron::kernels::cpu {

namespace {

double load(const std::byte* p, DType type, int64_t i) {
  if (type == DType::f64) return reinterpret_cast<const double*>(p)[i];
  if (type == DType::f32) return reinterpret_cast<const float*>(p)[i];
  return static_cast<float>(reinterpret_cast<const bf16*>(p)[i]);
}

// out = factor * sums + bias + (accumulate ? out : 0), rounded once. sums: rows `stride` apart, or
// null for zeros.
template <class Sum, class Out>
void store(const Problem& p, const Block& block, const Sum* sums, int64_t stride = 0) {
  const std::byte* bias = bias_at(p, block);
  Out* out = reinterpret_cast<Out*>(out_at(p, block));
  for (int64_t i = 0; i < block.m; ++i, out += p.ldc) {
    for (int64_t j = 0; j < block.n; ++j) {
      Sum value = sums == nullptr ? Sum{0} : sums[i * stride + j] * static_cast<Sum>(p.factor);
      if (bias != nullptr) value += static_cast<Sum>(load(bias, p.bias_type, j));
      if (p.accumulate) value += static_cast<Sum>(out[j]);
      out[j] = static_cast<Out>(value);
    }
  }
}

// A product with k = 0.
void store_zeros(const Problem& p, const Block& block) {
  if (p.result == DType::f64) return store<double, double>(p, block, nullptr);
  if (p.result == DType::f32) return store<float, float>(p, block, nullptr);
  store<float, bf16>(p, block, nullptr);
}

// Computes a block of a product in words and panels. Each sum is one chain over k in ascending
// order (by
// tile_product), starting from 0, for every element: it depends neither on the block nor on how k
// is split.
//
// Processes one slice of k at a time. All of b's slice is in panels in the L2 cache; rows of a
// pass through in groups, of which one strip stays in the L1 cache while all panels are used.
// So b is packed once for all rows of a block, and a once for all its columns.
class PanelProduct {
 public:
  // The largest block (kernels/cpu/products/block_size.h).
  static BlockSize largest(WordKind kind) { return largest_block(kind, second_level_cache()); }

  PanelProduct(const Problem& p, const Block& block, WordKind kind)
      : p_(p),
        block_(block),
        kind_(kind),
        strip_(tile_strip(kind)),
        group_(kGroup / strip_ * strip_),
        few_(block.m <= group_),
        stride_(largest(kind).n + 16) {
    const ProductBuffers buffers = product_buffers();
    sums_ = buffers.sums;
    rows_ = buffers.rows;
    panels_ = buffers.panels;
  }

  void run() {
    if (!p_.transpose_a && p_.transpose_b && takes_few_rows(kind_, p_.in, block_.m))
      return run_few_rows();
    // With few rows, most of the work is packing, so each panel is used while the L1 cache holds
    // it. If b is not transposed, rows of b are read in memory order, for all panels at once.
    const int64_t columns = few_ && p_.transpose_b ? kPanel : block_.n;
    const int64_t step = kDepth * per_word();
    for (int64_t k = 0; k < block_.depth; k += step) {
      const Slice slice{k, std::min(step, block_.depth - k)};
      for (int64_t j = 0; j < block_.n; j += columns) {
        const Block right = part(0, 0, j, std::min(columns, block_.n - j));
        pack_columns(right, slice);
        for (int64_t i = 0; i < block_.m; i += group_) {
          const Block group = part(i, std::min(group_, block_.m - i), j, right.n);
          if (!few_ || j == 0) pack_rows(group, slice);
          multiply_group(group, slice);
        }
      }
    }
  }

 private:
  // kDepth: words of k in a slice. kGroup: most rows of a in a group. kPanelWords: words from one
  // panel to the next. Panels and rows of sums are padded by a cache line, since addresses a
  // multiple of 4 KB apart map to the same cache sets.
  static constexpr int64_t kDepth = kSliceWords, kGroup = 64;
  static constexpr int64_t kPanelWords = kDepth * kPanel + 16;
  static_assert(2 * kDepth % kChainCut == 0 && kDepth <= kAmxTurnedWords);

  struct Slice {
    int64_t k, depth;
  };

  // Packs only a.
  void run_few_rows() {
    const int64_t step = kGroup * kDepth / block_.m / kDepth * kDepth * per_word();
    const int64_t rows_after = p_.n - block_.j - block_.n;
    for (int64_t k = 0; k < block_.depth; k += step) {
      const Slice slice{k, std::min(step, block_.depth - k)};
      pack_rows(block_, slice);
      few_rows_product_nt(kind_, {.m = block_.m,
                                  .n = block_.n,
                                  .elements = slice.depth,
                                  .a = rows_,
                                  .a_row = words(kind_, slice.depth),
                                  .b = {b_at(p_, block_, k), p_.ldb, p_.in},
                                  .c = sums_,
                                  .ldc = stride_,
                                  .accumulate = k > 0,
                                  .after = k + step < block_.depth ? 0 : rows_after});
    }
    store(block_, sums_);
  }

  int64_t per_word() const { return kind_ == WordKind::f32 ? 1 : 2; }
  Block part(int64_t i, int64_t m, int64_t j, int64_t n) const {
    Block part = block_;
    part.i += i;
    part.j += j;
    part.m = m;
    part.n = n;
    return part;
  }

  void pack_columns(const Block& right, const Slice& slice) {
    const std::byte* b = b_at(p_, right, slice.k);
    const int64_t width = words(kind_, slice.depth);
    if (!p_.transpose_b) {
      return rows_to_panels(kind_, {b, p_.ldb, p_.in}, slice.depth, width * per_word(), right.n,
                            kPanelWords, panels_);
    }
    const int64_t panel_bytes = kPanel * p_.ldb * size_of(p_.in);
    const int64_t end = block_.j + block_.n;
    for (int64_t j = 0; j < right.n; j += kPanel, b += panel_bytes) {
      const bool ahead = !few_ && right.j + j + 2 * kPanel <= end;
      transpose_to_panel(kind_, {b, p_.ldb, p_.in}, std::min(kPanel, right.n - j), slice.depth,
                         ahead ? b + panel_bytes : nullptr, panels_ + j / kPanel * kPanelWords);
    }
  }

  void pack_rows(const Block& group, const Slice& slice) {
    const MatrixRows from{a_at(p_, group, slice.k), p_.lda, p_.in};
    const int64_t width = words(kind_, slice.depth);
    if (p_.transpose_a && kind_ == WordKind::bf16_amx) {
      static_assert(kAmxStrip == kPanel);
      return rows_to_panels(kind_, from, slice.depth, 2 * width, group.m, width * kPanel, rows_);
    }
    if (p_.transpose_a) return rows_to_strips(kind_, from, slice.depth, group.m, strip_, rows_);
    rows_to_words(kind_, from, group.m, slice.depth, rows_);
  }

  RowsAhead group_after(const Block& group, const Slice& slice) const {
    const int64_t rows = std::min(group_, block_.i + block_.m - group.i - group.m);
    if (rows <= 0) return {};
    const int64_t size = size_of(p_.in), stride = p_.lda * size;
    Block next = group;
    next.i += group_;
    const std::byte* a = a_at(p_, next, slice.k);
    return p_.transpose_a ? RowsAhead(a, slice.depth, rows * size, stride)
                          : RowsAhead(a, rows, slice.depth * size, stride);
  }

  // Rows of b after those of a panel: the next panel's, or the first of the next slice.
  RowsAhead panel_after(const Block& group, const Slice& slice) const {
    const int64_t end = slice.k + slice.depth;
    if (!p_.transpose_b) {
      const int64_t rows = std::min(slice.depth, block_.depth - end), size = size_of(p_.in);
      if (rows <= 0) return {};
      return RowsAhead(b_at(p_, group, end), rows, group.n * size, p_.ldb * size);
    }
    Block next = group;
    Slice of = slice;
    next.j += kPanel;
    if (next.j >= block_.j + block_.n) {
      next.j = block_.j;
      of = {slice.k + slice.depth, std::min(slice.depth, block_.depth - slice.k - slice.depth)};
    }
    const int64_t rows = std::min(kPanel, block_.j + block_.n - next.j), size = size_of(p_.in);
    if (of.depth <= 0) return {};
    return RowsAhead(b_at(p_, next, of.k), rows, of.depth * size, p_.ldb * size);
  }

  // Prefetches memory during the products. With few rows that is b, whose reading takes all the
  // time.
  void multiply_group(const Block& group, const Slice& slice) {
    const int64_t width = words(kind_, slice.depth);
    float* sums = sums_ + (group.i - block_.i) * stride_ + (group.j - block_.j);
    RowsAhead next = few_ ? panel_after(group, slice) : group_after(group, slice);
    const int64_t share =
        few_ ? ceil_div(next.all(), ceil_div(group.m, strip_)) : next.all() * strip_ / group_;
    for (int64_t i = 0; i < group.m; i += strip_) {
      next.lines(share);
      tile_product(kind_, {.m = std::min(strip_, group.m - i),
                           .n = round_up(group.n, kPanel),
                           .k = width,
                           .a = rows_ + i * width,
                           .a_row = p_.transpose_a ? 1 : width,
                           .a_step = p_.transpose_a ? strip_ : 1,
                           .b = panels_,
                           .panel = kPanelWords,
                           .c = sums + i * stride_,
                           .ldc = stride_,
                           .accumulate = slice.k > 0});
    }
    if (slice.k + slice.depth == block_.depth) store(group, sums);
  }

  void store(const Block& group, const float* sums) const {
    store_sums({.rows = group.m,
                .columns = group.n,
                .sums = sums,
                .sums_stride = stride_,
                .factor = static_cast<float>(p_.factor),
                .bias = bias_at(p_, group),
                .bias_type = p_.bias_type,
                .accumulate = p_.accumulate,
                .out = out_at(p_, group),
                .out_stride = p_.ldc,
                .out_type = p_.result});
  }

  friend ProductBuffers megatron::kernels::cpu::product_buffers();

  const Problem& p_;
  const Block& block_;
  WordKind kind_;
  int64_t strip_,
      group_;  // rows of a that tile_product processes, and that are copied, at a time
  bool few_;
  int64_t stride_;  // floats from one row of sums to the next
  float* sums_;
  uint32_t *rows_, *panels_;
};

void run_double(const Problem& p, const Block& block) {
  const int64_t stride = double_stride(block.n);
  auto* sums = reinterpret_cast<double*>(thread_buffer(Slot::c, block.m * stride * 8));
  double_product({.m = block.m,
                  .n = block.n,
                  .k = block.depth,
                  .type = p.in,
                  .a = {a_at(p, block, 0), p.transpose_a ? 1 : p.lda, p.transpose_a ? p.lda : 1},
                  .b = {b_at(p, block, 0), p.transpose_b ? p.ldb : 1, p.transpose_b ? 1 : p.ldb},
                  .c = sums});
  p.result == DType::f64 ? store<double, double>(p, block, sums, stride)
                         : store<double, float>(p, block, sums, stride);
}

// The blocks of a problem: the rows of each product are divided into similar heights, and blocks
// are numbered product by product.
class Blocks {
 public:
  Blocks(const Problem& p, const BlockSize& size)
      : p_(p), size_(size), columns_(ceil_div(p.n, size.n)) {
    if (p.row_cuts == nullptr) return;
    begins_.push_back(0);
    for (int64_t g = 0; g < p.batch; ++g)
      begins_.push_back(begins_.back() + ceil_div(p.rows(g).size(), size.m) * columns_);
  }

  int64_t count_all() const { return begins_.empty() ? p_.batch * of_product() : begins_.back(); }
  Block operator[](int64_t index) const {
    int64_t g = 0;
    if (begins_.empty()) {
      g = index / of_product();
      index %= of_product();
    } else {
      g = std::ranges::upper_bound(begins_, index) - begins_.begin() - 1;
      index -= begins_[static_cast<size_t>(g)];
    }
    const Range rows = p_.rows(g), depth = p_.depth(g);
    Block block{.g = g,
                .i = rows.begin + index / columns_ * size_.m,
                .j = index % columns_ * size_.n,
                .m = 0,
                .n = 0,
                .k = depth.begin,
                .depth = depth.size()};
    block.m = std::min(size_.m, rows.end - block.i);
    block.n = std::min(size_.n, p_.n - block.j);
    return block;
  }

 private:
  int64_t of_product() const { return ceil_div(p_.m, size_.m) * columns_; }

  const Problem& p_;
  BlockSize size_;
  int64_t columns_;
  std::vector<int64_t> begins_;  // of products with row cuts
};

bool in_double(const Problem& p) { return p.double_sums || p.in == DType::f64; }

int64_t most_rows(const Problem& p) {
  if (p.row_cuts == nullptr) return p.m;
  int64_t most = 0;
  for (int64_t g = 0; g < p.batch; ++g) most = std::max(most, p.rows(g).size());
  return most;
}

// Sums in panels do not depend on blocks, so block sizes can be chosen for the number of threads:
// as large as possible, since each block packs its own operands, but the same number for each
// thread.
BlockSize panel_blocks(const Problem& p, WordKind kind, int64_t threads) {
  constexpr int64_t kMin = 64, kMany = 4;
  const BlockSize most = PanelProduct::largest(kind);
  const int64_t m = most_rows(p);
  int64_t rows = ceil_div(m, most.m), cols = ceil_div(p.n, most.n);
  for (;;) {
    const BlockSize size{round_up(ceil_div(m, rows), tile_strip(kind)),
                         round_up(ceil_div(p.n, cols), kPanel)};
    const int64_t blocks =
        p.row_cuts == nullptr ? p.batch * rows * cols : Blocks(p, size).count_all();
    const bool even = (p.row_cuts == nullptr && blocks % threads == 0) || blocks >= kMany * threads;
    if (even || std::max(size.m, size.n) <= kMin) return size;
    ++(size.m >= size.n ? rows : cols);
  }
}

bool has_panels(const Problem& p) { return !in_double(p) && p.k > 0; }

Blocks blocks_of(const Problem& p, WordKind kind, int64_t threads) {
  return {p, has_panels(p) ? panel_blocks(p, kind, threads) : BlockSize{64, 64}};
}

// Other products with so few rows are packed panel by panel.
constexpr int64_t kFewAmxRows = 64;

void run(const Problem& p, const Block& block, WordKind kind) {
  if (block.depth == 0) return store_zeros(p, block);
  if (in_double(p)) return run_double(p, block);
  if (kind == WordKind::bf16_amx && block.m > kFewRows) {
    if (takes_amx_few_rows(p, block)) return amx_few_rows_block(p, block);
    if (block.m > kFewAmxRows) return amx_block(p, block);
  }
  PanelProduct(p, block, kind).run();
}

}  // namespace

ProductBuffers product_buffers() {
  constexpr int64_t kRows = PanelProduct::kGroup * PanelProduct::kDepth * 4,
                    kColumns = kMaxColumns / kPanel * PanelProduct::kPanelWords * 4,
                    kSums = kMaxRows * (kMaxColumns + 16) * 4;
  const auto words = [](Slot slot, int64_t bytes) {
    return reinterpret_cast<uint32_t*>(thread_buffer(slot, bytes));
  };
  return {.rows = words(Slot::a, std::max(kRows, kAmxRowBytes)),
          .panels = words(Slot::b, std::max(kColumns, kAmxColumnBytes)),
          .sums = reinterpret_cast<float*>(words(Slot::c, std::max(kSums, kAmxSumBytes)))};
}

void compute(const Problem& p, Stream& stream) {
  if (p.batch * most_rows(p) * p.n == 0) return;
  const WordKind kind = word_kind(p.in, bf16_products());
  const bool panels = has_panels(p);
  const Blocks blocks = blocks_of(p, kind, stream.pool().size());
  const auto run_block = [&](int64_t index, int) { run(p, blocks[index], kind); };
  // A thread that reads a weight in place goes on to the block whose rows it has prefetched.
  if (kind == WordKind::bf16_amx && panels && most_rows(p) <= kFewAmxRows) {
    stream.pool().parallel_shares(blocks.count_all(), run_block);
  } else {
    stream.pool().parallel_for(blocks.count_all(), run_block);
  }
}

void compute_each(std::span<const Problem> problems, Stream& stream) {
  std::vector<Blocks> blocks;
  std::vector<const Problem*> of_blocks;
  std::vector<int64_t> ends;  // of the problems' blocks
  const auto threads = ceil_div(int64_t{stream.pool().size()}, std::ssize(problems));
  for (const Problem& p : problems) {
    if (p.batch * p.m * p.n == 0) continue;
    blocks.push_back(blocks_of(p, word_kind(p.in, bf16_products()), threads));
    of_blocks.push_back(&p);
    ends.push_back((ends.empty() ? 0 : ends.back()) + blocks.back().count_all());
  }
  if (ends.empty()) return;
  // Each thread has adjacent blocks: those of a problem read adjacent memory.
  stream.pool().parallel_shares(ends.back(), [&](int64_t index, int) {
    const auto at = static_cast<size_t>(std::ranges::upper_bound(ends, index) - ends.begin());
    const Problem& p = *of_blocks[at];
    run(p, blocks[at][index - (at == 0 ? 0 : ends[at - 1])], word_kind(p.in, bf16_products()));
  });
}

}  // namespace megatron::kernels::cpu
