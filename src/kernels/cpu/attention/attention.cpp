#include "kernels/cpu/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention/bias.h"
#include "kernels/cpu/attention/blocks.h"
#include "kernels/cpu/attention/keys_ahead.h"
#include "kernels/cpu/products/amx_products.h"
#include "kernels/cpu/products/few_rows.h"
#include "kernels/latents.h"
#include "kernels/table.h"

namespace megatron::kernels::cpu {

namespace {

// True if all rows of a key head are few enough to read keys and values in place, without packing.
bool reads_unpacked(const AttentionSizes& sizes, DType type) {
  return takes_few_rows(sizes.kind, type, sizes.queries * sizes.group);
}

// Keys and values of every (sample, key head), packed as panels. If several blocks of rows read
// them, they are packed once. A single block of rows packs each block of keys when needed, in
// thread memory that stays in cache. Calls with few rows read keys and values unpacked.
class PackedKeys {
 public:
  struct Block {
    uint32_t* keys;    // [keys / 32][key.words][32]
    uint32_t* values;  // [value.columns / 32][words(keys)][32]
  };

  // Layout of keys and values in their memory.
  struct Form {
    Form(const AttentionSizes& sizes, DType type) : once(sizes.row_blocks() > 1) {
      if (reads_unpacked(sizes, type)) return;
      const int64_t keys = once ? sizes.padded_keys : kKeyColumns;
      value_offset = keys * sizes.key.words;
      place_words = value_offset + words(sizes.kind, keys) * sizes.value.columns;
    }
    int64_t bytes(const AttentionSizes& sizes, int threads) const {
      return (once ? sizes.batch * sizes.kv_heads : threads) * place_words * 4;
    }
    bool once;
    int64_t value_offset = 0, place_words = 0;
  };

  PackedKeys(const AttentionArgs& args, const AttentionSizes& sizes, const KeyPlaces& places,
             const Storage& memory, Stream& stream)
      : args_(args),
        sizes_(sizes),
        places_(places),
        form_(sizes, args.k.dtype()),
        data_(reinterpret_cast<uint32_t*>(memory.data())) {
    if (!form_.once) return;
    const int64_t heads = sizes.batch * sizes.kv_heads, blocks = sizes.key_blocks();
    stream.pool().parallel_for(heads * blocks, [&](int64_t index, int) {
      pack(index / blocks, index % blocks, at(index / blocks, index % blocks));
    });
  }

  Block block(int64_t head, int64_t block, int thread) const {
    if (form_.once) return at(head, block);
    const Block here = at(thread, 0);
    pack(head, block, here);
    return here;
  }

 private:
  Block at(int64_t place, int64_t block) const {
    uint32_t* begin = data_ + place * form_.place_words;
    const int64_t keys = block * kKeyColumns;
    return {begin + keys * sizes_.key.words,
            begin + form_.value_offset + words(sizes_.kind, keys) * sizes_.value.columns};
  }

  // Packs the panels that some query may see; keys after the last such key become zero.
  void pack(int64_t head, int64_t block, const Block& to) const {
    const int64_t sample = head / sizes_.kv_heads, key_head = head % sizes_.kv_heads;
    const KeyRange range = places_.reachable(sample, block);
    const int64_t begin = block * kKeyColumns + range.first, count = range.reachable;
    if (count == 0) return;
    const KeyRows keys(args_.k, args_.block_table, sample, key_head),
        values(args_.v, args_.block_table, sample, key_head);
    for (int64_t j = 0; j < range.count; j += kPanel) {
      const auto ahead = [&](const KeyRows& rows, int64_t first, int64_t width) {
        const int64_t there = std::clamp<int64_t>(count - first, 0, kPanel);
        if (there > 0) prefetch_rows(rows.from(begin + first), there, width);
      };
      ahead(values, j, sizes_.value.elements);
      ahead(keys, j + kPanel, sizes_.key.elements);
      const int64_t there = std::clamp<int64_t>(count - j, 0, kPanel);
      transpose_to_panel(sizes_.kind, keys.from(begin + (there > 0 ? j : 0)), there,
                         sizes_.key.elements, nullptr,
                         to.keys + (range.first + j) * sizes_.key.words);
    }
    const int64_t panel = words(sizes_.kind, sizes_.block_keys(block)) * kPanel;
    values.for_pages(begin, count, [&](int64_t at, int64_t part) {
      // Pads the last part's panels with zeros.
      const int64_t padded = at + part < count ? part : range.count - at;
      rows_to_panels(sizes_.kind, values.from(begin + at), part, padded, sizes_.value.elements,
                     panel, to.values + words(sizes_.kind, range.first + at) * kPanel);
    });
  }

  const AttentionArgs& args_;
  const AttentionSizes& sizes_;
  const KeyPlaces& places_;
  Form form_;
  uint32_t* data_;
};

// Results for a block's rows over some of the keys.
struct Totals {
  float *maximum, *sum;  // [rows]: largest scores and sums of weights relative to them
  float* output;         // [rows][columns]: weighted sums of values
};

// The totals of ranges of latents (kernels/latents.h): of the ranges of one block of rows after the
// other in a thread, or of each range in a place of its own.
struct LatentRanges {
  LatentRanges(const AttentionArgs& args, const AttentionSizes& sizes, int threads)
      : count(are_latents(args) ? std::max<int64_t>(1, ceil_div(sizes.keys, kLatentRange)) : 1),
        blocks(sizes.batch * sizes.kv_heads * sizes.row_blocks()),
        words(kQueryRows * (2 + sizes.value.columns)) {
    constexpr int64_t kMaxBytes = int64_t{64} << 20;
    are_shared = count > 1 && blocks < threads && blocks * count * words * 4 <= kMaxBytes;
    places = count == 1 ? 0 : are_shared ? blocks * count : threads;
  }
  int64_t bytes() const { return places * words * 4; }
  Totals at(int64_t place, std::byte* memory) const {
    float* begin = reinterpret_cast<float*>(memory) + place * words;
    return {begin, begin + kQueryRows, begin + 2 * kQueryRows};
  }
  // The part of the blocks of keys that lies in a range.
  static RowBlock::KeyBlocks within(const RowBlock::KeyBlocks& all, int64_t range) {
    static_assert(kLatentRange % kKeyColumns == 0);
    constexpr int64_t kBlocks = kLatentRange / kKeyColumns;
    return {std::max(all.begin, range * kBlocks), std::min(all.end, (range + 1) * kBlocks)};
  }

  int64_t count, blocks, words, places = 0;
  bool are_shared = false;  // threads share the ranges of a block of rows
};

// Adds what `rows` rows have in another range, from row `first` on.
void merge(const Totals& into, const Totals& from, int64_t first, int64_t rows, int64_t columns) {
  for (int64_t i = first; i < first + rows; ++i) {
    if (from.sum[i] == 0) continue;
    float* out = into.output + i * columns;
    const float* more = from.output + i * columns;
    if (into.sum[i] == 0) {
      into.maximum[i] = from.maximum[i];
      into.sum[i] = from.sum[i];
      std::copy_n(more, columns, out);
      continue;
    }
    const float maximum = std::max(into.maximum[i], from.maximum[i]),
                fade = std::exp(into.maximum[i] - maximum),
                other = std::exp(from.maximum[i] - maximum);
    into.maximum[i] = maximum;
    into.sum[i] = into.sum[i] * fade + from.sum[i] * other;
    for (int64_t j = 0; j < columns; ++j) out[j] = out[j] * fade + more[j] * other;
  }
}

struct Workspace {
  Workspace(const AttentionSizes& sizes, bool biased, std::byte* begin) {
    const int64_t tile = kQueryRows * kKeyColumns;
    const ScratchPiece pieces[] = {
        {&scores, tile},
        {&weights, is_paired(sizes.kind) ? tile / 2 : 0},
        {&random, sizes.dropout.p > 0 ? tile : 0},
        {&bias, biased && sizes.k_positions.defined() ? tile : 0},
        {&queries, kQueryRows * sizes.key.words},
        {&output, kQueryRows * sizes.value.columns},
    };
    bytes = cut_pieces(begin, pieces);
  }

  Totals totals() { return {maximum, sum, floats(output)}; }

  int64_t bytes = 0;
  uint32_t *scores, *weights, *random, *bias, *queries, *output;
  const float* bias_rows[kQueryRows];
  float maximum[kQueryRows], sum[kQueryRows];
};

// Computes one tile: scores of queries with keys, and the contribution of its values to the output.
class PackedTile {
 public:
  PackedTile(const AttentionSizes& sizes, const PackedKeys::Block& from, int64_t block,
             const TilePlace& place)
      : sizes_(sizes), place_(place) {
    keys_ = from.keys + place.first * sizes.key.words;
    values_ = from.values + words(sizes.kind, place.first) * kPanel;
    value_panel_ = words(sizes.kind, sizes.block_keys(block)) * kPanel;
  }
  void score(Workspace& work) const {
    tile_product(sizes_.kind, {.m = place_.rows,
                               .n = place_.keys,
                               .k = sizes_.key.words,
                               .a = work.queries,
                               .a_row = sizes_.key.words,
                               .a_step = 1,
                               .b = keys_,
                               .panel = sizes_.key.words * kPanel,
                               .c = floats(work.scores),
                               .ldc = kKeyColumns,
                               .accumulate = false});
  }
  void add_values(const uint32_t* weights, Workspace& work) const {
    tile_product(sizes_.kind, {.m = place_.rows,
                               .n = sizes_.value.columns,
                               .k = words(sizes_.kind, place_.keys),
                               .a = weights,
                               .a_row = words(sizes_.kind, kKeyColumns),
                               .a_step = 1,
                               .b = values_,
                               .panel = value_panel_,
                               .c = floats(work.output),
                               .ldc = sizes_.value.columns,
                               .accumulate = true});
  }

 private:
  const AttentionSizes& sizes_;
  const TilePlace& place_;
  const uint32_t *keys_, *values_;
  int64_t value_panel_;
};

// The same for few rows, which read keys and values in place, while those after them are
// prefetched. Keys that no row sees are skipped: their scores are undefined and their weights zero.
class UnpackedTile {
 public:
  UnpackedTile(const AttentionArgs& args, const AttentionSizes& sizes, const RowBlock& rows,
               int64_t first, int64_t keys, const TilePlace& place,
               const FunctionRef<void(int64_t)>& prefetch)
      : sizes_(sizes),
        rows_(place.rows),
        first_(first),
        count_(keys),
        paged_(args.block_table.defined()),
        keys_(args.k, args.block_table, rows.sample, rows.key_head),
        values_(args.v, args.block_table, rows.sample, rows.key_head),
        prefetch_(prefetch) {}
  void score(Workspace& work) const {
    for_parts([&](int64_t at, int64_t part) {
      // A page holds whole panels of keys; products of a whole one are faster.
      few_rows_product_nt(sizes_.kind, {.m = rows_,
                                        .n = paged_ ? kPanel : part,
                                        .elements = sizes_.key.elements,
                                        .a = work.queries,
                                        .a_row = sizes_.key.words,
                                        .b = keys_.from(first_ + at),
                                        .c = floats(work.scores) + at,
                                        .ldc = kKeyColumns,
                                        .accumulate = false,
                                        .meanwhile = &prefetch_});
    });
  }
  void add_values(const uint32_t* weights, Workspace& work) const {
    for_parts([&](int64_t at, int64_t part) {
      few_rows_product_nn(sizes_.kind, {.m = rows_,
                                        .n = sizes_.value.elements,
                                        .elements = part,
                                        .a = weights + words(sizes_.kind, at),
                                        .a_row = words(sizes_.kind, kKeyColumns),
                                        .b = values_.from(first_ + at),
                                        .c = floats(work.output),
                                        .ldc = sizes_.value.columns,
                                        .accumulate = true,
                                        .meanwhile = &prefetch_});
    });
  }

 private:
  static_assert(kPageKeys % kPanel == 0 && kPanel % kChainCut == 0);

  // Calls f(offset, count) for parts within one page each.
  template <class F>
  void for_parts(F f) const {
    for (int64_t at = 0; at < count_; at += kPanel) f(at, std::min(kPanel, count_ - at));
  }

  const AttentionSizes& sizes_;
  int64_t rows_, first_, count_;
  bool paged_;
  KeyRows keys_, values_;
  const FunctionRef<void(int64_t)>& prefetch_;
};

// Computes the rows of `block` by online softmax over these blocks of keys in ascending order, as
// totals in `work`.
void attend(const AttentionArgs& args, const AttentionSizes& sizes, const KeyPlaces& places,
            const PackedKeys& packed, const HeadBias& bias, const RowBlock& block,
            const RowBlock::KeyBlocks& blocks, int thread,
            const FunctionRef<void(int64_t)>& prefetch, Workspace& work) {
  const int64_t head = block.sample * sizes.kv_heads + block.key_head;
  pack_rows(HeadRows(args.q, block.sample, block.key_head, sizes.group), block.begin, block.count,
            block.rows, sizes.kind, work.queries);
  std::fill_n(work.maximum, block.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(work.sum, block.rows, 0.0f);
  std::fill_n(work.output, block.rows * sizes.value.columns, 0u);
  const bool unpacked = reads_unpacked(sizes, args.k.dtype());
  const bool pairs = is_paired(sizes.kind);
  const uint32_t* weights = pairs ? work.weights : work.scores;
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    TilePlace place = block.tile(places, b);
    if (place.keys == 0) continue;
    const auto tile = [&](const auto& products) {
      products.score(work);
      softmax_step({.place = place,
                    .dropout = block.draw(sizes, place, work.random),
                    .kind = sizes.kind,
                    .scale = static_cast<float>(args.scale),
                    .soft_cap = static_cast<float>(args.soft_cap),
                    .bias = bias.of_tile(sizes, block, place, work.bias, work.bias_rows),
                    .scores = floats(work.scores),
                    .weights = work.weights,
                    .maximum = work.maximum,
                    .sum = work.sum,
                    .output = floats(work.output),
                    .width = sizes.value.columns});
      products.add_values(weights, work);
    };
    if (unpacked) {
      place.rows = block.count;
      const int64_t seen = places.reachable(block.sample, b).reachable;
      tile(UnpackedTile(args, sizes, block, b * kKeyColumns + place.first, seen, place, prefetch));
    } else {
      tile(PackedTile(sizes, packed.block(head, b, thread), b, place));
    }
  }
}

// Factor of a row's weighted sum, and its log-sum-exp.
struct Normalised {
  float factor, lse;
};
Normalised normalised(float maximum, float sum) {
  if (sum == 0) return {0.0f, maximum};  // false for NaN, which must reach the output
  return {1.0f / sum, static_cast<float>(maximum + std::log(static_cast<double>(sum)))};
}
// With a sink, an additional score that has no value vector.
Normalised normalised(float maximum, float sum, float sink) {
  if (sum == 0) return {0.0f, sink};
  const double top = std::max(maximum, sink), fade = std::exp(maximum - top);
  const double all = sum * fade + std::exp(sink - top);
  return {static_cast<float>(fade / all), static_cast<float>(top + std::log(all))};
}

void finish(const AttentionArgs& args, const AttentionSizes& sizes, const RowBlock& block,
            const Totals& totals) {
  float* lse = args.lse.data<float>();
  const float* sinks = args.sinks.defined() ? args.sinks.data<float>() : nullptr;
  float factors[kQueryRows];
  for (int64_t i = 0; i < block.count; ++i) {
    const float maximum = totals.maximum[i], sum = totals.sum[i];
    const Normalised row = sinks == nullptr ? normalised(maximum, sum)
                                            : normalised(maximum, sum, sinks[block.head(sizes, i)]);
    factors[i] = row.factor;
    lse[block.statistics_index(sizes, i)] = row.lse;
  }
  unpack_rows(HeadRows(args.out, block.sample, block.key_head, sizes.group), block.begin,
              block.count, totals.output, sizes.value.columns, factors);
}

// Key heads that a thread attends to one after the other if it reads keys in place. Only the first
// of them waits for memory, but threads must share the heads evenly.
int64_t heads_at_once(int64_t heads, int64_t threads) {
  constexpr int64_t kParts = 4;
  return std::max<int64_t>(1, heads / (kParts * threads));
}

class ForwardPass {
 public:
  ForwardPass(const AttentionArgs& args, const AttentionScratch& scratch, Stream& stream)
      : args_(args),
        scratch_(scratch),
        pool_(stream.pool()),
        sizes_(args),
        places_(sizes_, scratch.positions),
        packed_(args, sizes_, places_, *scratch.keys, stream),
        bias_(args.bias, scratch.bias, stream),
        ranges_(args, sizes_, pool_.size()),
        unpacked_(reads_unpacked(sizes_, args.k.dtype())) {}

  void run() {
    if (ranges_.are_shared) return share_ranges();
    const int64_t all = ranges_.blocks, run = unpacked_ ? heads_at_once(all, pool_.size()) : 1;
    pool_.parallel_for(ceil_div(all, run), [&](int64_t part, int thread) {
      const int64_t begin = part * run, end = std::min(begin + run, all);
      with_keys_ahead({args_, sizes_, begin, unpacked_ ? end : begin}, [&](const Prefetch& ahead) {
        Workspace work = workspace(thread);
        for (int64_t index = begin; index < end; ++index) attend_to(index, thread, ahead, work);
      });
    });
  }

 private:
  using Prefetch = FunctionRef<void(int64_t)>;

  // Block of rows. Starts with the last ones: under a causal mask they see the most keys.
  RowBlock block(int64_t index) const {
    const int64_t blocks = sizes_.row_blocks(), head = index / blocks;
    return {sizes_, head / sizes_.kv_heads, head % sizes_.kv_heads, blocks - 1 - index % blocks};
  }
  Workspace workspace(int thread) const {
    return {sizes_, args_.bias.defined(), scratch_.tiles->data() + thread * scratch_.tile_bytes};
  }
  Totals totals(int64_t place) const { return ranges_.at(place, scratch_.ranges->data()); }
  template <class F>
  static void with_keys_ahead(KeysAhead ahead, const F& f) {
    const KeepTiles keep_tiles;
    ahead.block();
    const auto prefetch = [&](int64_t lines) { ahead.lines(lines); };
    f(Prefetch(prefetch));
  }

  // All keys of a block of rows, in one thread.
  void attend_to(int64_t index, int thread, const Prefetch& prefetch, Workspace& work) const {
    const RowBlock rows = block(index);
    const RowBlock::KeyBlocks keys = rows.key_blocks(sizes_);
    if (ranges_.count == 1) {
      attend(args_, sizes_, places_, packed_, bias_, rows, keys, thread, prefetch, work);
      return finish(args_, sizes_, rows, work.totals());
    }
    const Totals sums = totals(thread);
    std::fill_n(sums.sum, rows.rows, 0.0f);
    std::fill_n(sums.maximum, rows.rows, -std::numeric_limits<float>::infinity());
    std::fill_n(sums.output, rows.rows * sizes_.value.columns, 0.0f);
    for (int64_t range = 0; range < ranges_.count; ++range) {
      const RowBlock::KeyBlocks within = LatentRanges::within(keys, range);
      if (within.begin >= within.end) continue;
      attend(args_, sizes_, places_, packed_, bias_, rows, within, thread, prefetch, work);
      merge(sums, work.totals(), 0, rows.count, sizes_.value.columns);
    }
    finish(args_, sizes_, rows, sums);
  }

  // Ranges in any order, then their totals in order.
  void share_ranges() {
    const int64_t count = ranges_.count, columns = sizes_.value.columns;
    pool_.parallel_for(ranges_.blocks * count, [&](int64_t unit, int thread) {
      attend_to_range(unit / count, unit % count, thread);
    });
    constexpr int64_t kRows = 4;  // that a thread merges at once
    pool_.parallel_for(ranges_.blocks * kQueryRows / kRows, [&](int64_t part, int) {
      const int64_t index = part * kRows / kQueryRows, first = part * kRows % kQueryRows,
                    rows = std::min(kRows, block(index).count - first);
      for (int64_t range = 1; range < count; ++range)
        merge(totals(index * count), totals(index * count + range), first, rows, columns);
    });
    pool_.parallel_for(ranges_.blocks, [&](int64_t index, int) {
      finish(args_, sizes_, block(index), totals(index * count));
    });
  }
  void attend_to_range(int64_t index, int64_t range, int thread) const {
    const KeysAhead::Keys keys{range * kLatentRange, (range + 1) * kLatentRange};
    with_keys_ahead(
        {args_, sizes_, index, unpacked_ ? index + 1 : index, keys}, [&](const Prefetch& prefetch) {
          Workspace work = workspace(thread);
          const Totals to = totals(index * ranges_.count + range);
          work.output = reinterpret_cast<uint32_t*>(to.output);
          const RowBlock rows = block(index);
          attend(args_, sizes_, places_, packed_, bias_, rows,
                 LatentRanges::within(rows.key_blocks(sizes_), range), thread, prefetch, work);
          std::copy_n(work.maximum, rows.rows, to.maximum);
          std::copy_n(work.sum, rows.rows, to.sum);
        });
  }

  const AttentionArgs& args_;
  const AttentionScratch& scratch_;
  ThreadPool& pool_;
  AttentionSizes sizes_;
  KeyPlaces places_;
  PackedKeys packed_;
  HeadBias bias_;
  LatentRanges ranges_;
  bool unpacked_;
};

}  // namespace

AttentionScratch attention_scratch(const AttentionArgs& args, Stream& stream) {
  if (args.out.elements() == 0 && args.lse.elements() == 0) return {};
  const AttentionSizes sizes(args);
  const int threads = stream.target().threads;
  Arena& arena = stream.scratch();
  AttentionScratch scratch{.tile_bytes = Workspace(sizes, args.bias.defined(), nullptr).bytes};
  scratch.positions = arena.allocate(KeyPlaces::bytes(sizes), "attention key positions");
  scratch.keys = arena.allocate(PackedKeys::Form(sizes, args.k.dtype()).bytes(sizes, threads),
                                "attention keys");
  scratch.tiles = arena.allocate(scratch.tile_bytes * threads, "attention tiles");
  const LatentRanges ranges(args, sizes, threads);
  if (ranges.places > 0) scratch.ranges = arena.allocate(ranges.bytes(), "attention ranges");
  if (args.bias.defined())
    scratch.bias = arena.allocate(HeadBias::bytes(args.bias), "attention bias");
  return scratch;
}

void attention(const AttentionArgs& args, Stream& stream) {
  require_attention_type("attention", args.q.dtype());
  if (args.out.elements() == 0 && args.lse.elements() == 0) return;
  const AttentionScratch scratch = attention_scratch(args, stream);
  ForwardPass(args, scratch, stream).run();
}

}  // namespace megatron::kernels::cpu
