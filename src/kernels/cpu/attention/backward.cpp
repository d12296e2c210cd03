#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/bias.h"
#include "kernels/cpu/attention/blocks.h"
#include "kernels/table.h"

namespace megatron::kernels::cpu {

namespace {

// Memory of one thread: keys and values of one key head in the forms that the products need, their
// gradients, and a tile.
struct GradientWorkspace {
  GradientWorkspace(const AttentionBackwardArgs& args, const AttentionSizes& s, std::byte* begin) {
    const int64_t tile = kQueryRows * kKeyColumns, pair_tile = is_paired(s.kind) ? tile / 2 : 0;
    const int64_t row_words = words(s.kind, kQueryRows);
    const bool biased = args.bias.defined(), sums_bias = args.dbias.out.defined();
    const int64_t bias_tile = s.k_positions.defined() ? tile : 0;
    const ScratchPiece pieces[] = {
        {&keys_across, s.padded_keys * s.key.words},
        {&values_across, s.padded_keys * s.value.words},
        {&keys_down, words(s.kind, s.padded_keys) * s.key.columns},
        {&dkeys, s.padded_keys * s.key.columns},
        {&dvalues, s.padded_keys * s.value.columns},
        {&queries, kQueryRows * s.key.words},
        {&dout, kQueryRows * s.value.words},
        {&queries_down, row_words * s.key.columns},
        {&dout_down, row_words * s.value.columns},
        {&dqueries, kQueryRows * s.key.columns},
        {&scores, tile},
        {&slopes, tile},
        {&slope_pairs, pair_tile},
        {&weight_row_pairs, pair_tile},
        {&slope_row_pairs, pair_tile},
        {&random, s.dropout.p > 0 ? tile : 0},
        {&bias, biased ? bias_tile : 0},
        {&dbias, sums_bias ? bias_tile : 0},
        {&bias_parts, sums_bias ? BiasSums::part_words(args.bias, s.group) : 0},
    };
    bytes = cut_pieces(begin, pieces);
  }

  int64_t bytes = 0;
  uint32_t *keys_across, *values_across, *keys_down, *dkeys, *dvalues;
  uint32_t *queries, *dout, *queries_down, *dout_down, *dqueries;
  uint32_t *scores, *slopes, *slope_pairs, *weight_row_pairs, *slope_row_pairs, *random;
  uint32_t *bias, *dbias, *bias_parts;
  const float* bias_rows[kQueryRows];
  float lse[kQueryRows], delta[kQueryRows];
};

class KeyHeadGradient {
 public:
  KeyHeadGradient(const AttentionBackwardArgs& args, const AttentionSizes& sizes,
                  const KeyPlaces& places, const HeadBias& bias, int64_t sample, int64_t key_head,
                  double* sinks, BiasSums* bias_sums, GradientWorkspace& work)
      : args_(args),
        s_(sizes),
        places_(places),
        bias_(bias),
        sample_(sample),
        key_head_(key_head),
        sinks_(sinks),
        bias_sums_(bias_sums),
        work_(work) {}

  void run() {
    pack_keys();
    for (int64_t b = 0; b < s_.row_blocks(); ++b) {
      const RowBlock block(s_, sample_, key_head_, b);
      pack_queries(block);
      prefetch_queries(block.begin + kQueryRows);
      const RowBlock::KeyBlocks blocks = block.key_blocks(s_);
      for (int64_t keys = blocks.begin; keys < blocks.end; ++keys) {
        const TilePlace place = block.tile(places_, keys);
        if (place.keys > 0) add_tile(block, place, keys);
      }
      if (bias_sums_ != nullptr) bias_sums_->end_rows();
      write(head(args_.dq, s_.group), s_.key, args_.beta_q, block.begin, block.count,
            work_.dqueries);
    }
    write(head(args_.dk, 1), s_.key, args_.beta_kv, 0, s_.keys, work_.dkeys);
    write(head(args_.dv, 1), s_.value, args_.beta_kv, 0, s_.keys, work_.dvalues);
  }

 private:
  HeadRows head(const Tensor& t, int64_t group) const {
    return HeadRows(t, sample_, key_head_, group);
  }
  static void write(const HeadRows& to, const AttentionSizes::Width& width, double beta,
                    int64_t begin, int64_t count, uint32_t* values) {
    if (beta == 0) {
      unpack_rows(to, begin, count, floats(values), width.columns, nullptr);
    } else {
      add_rows(to, begin, count, floats(values), width.columns);
    }
  }
  // Offset of a block of keys in keys_down, which is summed over keys.
  int64_t down(int64_t block) const { return words(s_.kind, block * kKeyColumns) * s_.key.columns; }

  void pack_keys() {
    for (int64_t b = 0; b < s_.key_blocks(); ++b) {
      const int64_t begin = b * kKeyColumns, padded = s_.block_keys(b);
      const int64_t count = std::min(padded, s_.keys - begin);
      const HeadRows keys = head(args_.k, 1), values = head(args_.v, 1);
      for (int64_t j = 0; j < padded; j += kPanel) {
        const int64_t rows = std::clamp<int64_t>(count - j, 0, kPanel);
        const bool ahead = begin + j + 2 * kPanel <= s_.keys;
        const auto transpose = [&](const HeadRows& from, const AttentionSizes::Width& width,
                                   uint32_t* to) {
          transpose_to_panel(s_.kind, from.from(begin + j), rows, width.elements,
                             ahead ? from.row(begin + j + kPanel) : nullptr,
                             to + (begin + j) * width.words);
        };
        transpose(keys, s_.key, work_.keys_across);
        transpose(values, s_.value, work_.values_across);
      }
      rows_to_panels(s_.kind, keys.from(begin), count, padded, s_.key.elements,
                     words(s_.kind, padded) * kPanel, work_.keys_down + down(b));
    }
    std::fill_n(work_.dkeys, s_.padded_keys * s_.key.columns, 0u);
    std::fill_n(work_.dvalues, s_.padded_keys * s_.value.columns, 0u);
  }

  // Converts rows of words to panels that are summed over rows.
  void down_panels(const uint32_t* from, const AttentionSizes::Width& width, int64_t rows,
                   uint32_t* to) const {
    const bool pairs = is_paired(s_.kind);
    const int64_t elements = pairs ? 2 * width.words : width.words;
    rows_to_panels(
        s_.kind,
        {reinterpret_cast<const std::byte*>(from), elements, pairs ? DType::bf16 : DType::f32},
        rows, rows, elements, words(s_.kind, rows) * kPanel, to);
  }

  void pack_queries(const RowBlock& block) {
    const HeadRows dout = head(args_.dout, s_.group), out = head(args_.out, s_.group);
    pack_rows(head(args_.q, s_.group), block.begin, block.count, block.rows, s_.kind,
              work_.queries);
    pack_rows(dout, block.begin, block.count, block.rows, s_.kind, work_.dout);
    down_panels(work_.queries, s_.key, block.rows, work_.queries_down);
    down_panels(work_.dout, s_.value, block.rows, work_.dout_down);
    std::fill_n(work_.dqueries, block.rows * s_.key.columns, 0u);
    row_products(dout, out, block.begin, block.count, work_.delta);
    std::fill(work_.delta + block.count, work_.delta + block.rows, 0.0f);
    const float* lse = args_.lse.data<float>();
    for (int64_t i = 0; i < block.rows; ++i) {
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      const float row_lse = i < block.count ? lse[block.statistics_index(s_, i)] : kInfinity;
      work_.lse[i] =
          row_lse == -kInfinity ? kInfinity : row_lse;  // a row that sees no key has p = 0
    }
    if (sinks_ != nullptr) sum_sinks(block);
  }

  void sum_sinks(const RowBlock& block) {
    const float* sinks = args_.sinks.data<float>();
    for (int64_t i = 0; i < block.count; ++i) {
      const int64_t n = block.head(s_, i);
      if (sinks[n] == -std::numeric_limits<float>::infinity()) continue;
      sinks_[n] += std::exp(static_cast<double>(sinks[n]) - work_.lse[i]) * work_.delta[i];
    }
  }

  void prefetch_queries(int64_t begin) const {
    const int64_t count = std::min(kQueryRows, s_.queries * s_.group - begin);
    for (const Tensor* t : {&args_.q, &args_.dout, &args_.out})
      prefetch_rows(head(*t, s_.group), begin, count);
  }

  // scores = rows of `a` times a block of keys (or values), rows of this width.
  void across(const RowBlock& block, const TilePlace& place, const AttentionSizes::Width& width,
              const uint32_t* a, const uint32_t* b, int64_t keys, uint32_t* to) {
    tile_product(s_.kind, {.m = block.rows,
                           .n = place.keys,
                           .k = width.words,
                           .a = a,
                           .a_row = width.words,
                           .a_step = 1,
                           .b = b + (keys * kKeyColumns + place.first) * width.words,
                           .panel = width.words * kPanel,
                           .c = floats(to),
                           .ldc = kKeyColumns,
                           .accumulate = false});
  }
  // Gradient of a block of keys += (tile of rows by keys)^T rows.
  void add_to_keys(const RowBlock& block, const TilePlace& place,
                   const AttentionSizes::Width& width, const uint32_t* tile, const uint32_t* rows,
                   int64_t keys, uint32_t* to) {
    const int64_t depth = words(s_.kind, block.rows);
    tile_product(s_.kind, {.m = place.keys,
                           .n = width.columns,
                           .k = depth,
                           .a = tile,
                           .a_row = 1,
                           .a_step = kKeyColumns,
                           .b = rows,
                           .panel = depth * kPanel,
                           .c = floats(to) + (keys * kKeyColumns + place.first) * width.columns,
                           .ldc = width.columns,
                           .accumulate = true});
  }

  void add_tile(const RowBlock& block, const TilePlace& place, int64_t keys) {
    across(block, place, s_.key, work_.queries, work_.keys_across, keys, work_.scores);
    across(block, place, s_.value, work_.dout, work_.values_across, keys, work_.slopes);
    gradient_step(
        {.place = place,
         .dropout = block.draw(s_, place, work_.random),
         .kind = s_.kind,
         .scale = static_cast<float>(args_.scale),
         .soft_cap = static_cast<float>(args_.soft_cap),
         .bias = bias_.of_tile(s_, block, place, work_.bias, work_.bias_rows),
         .bias_gradient = bias_sums_ == nullptr ? nullptr : bias_sums_->of_tile(s_, block, place),
         .lse = work_.lse,
         .delta = work_.delta,
         .scores = floats(work_.scores),
         .slopes = floats(work_.slopes),
         .slope_pairs = work_.slope_pairs,
         .weight_row_pairs = work_.weight_row_pairs,
         .slope_row_pairs = work_.slope_row_pairs});
    if (bias_sums_ != nullptr) bias_sums_->end_tile(s_, block, place);
    const bool pairs = is_paired(s_.kind);
    add_to_keys(block, place, s_.value, pairs ? work_.weight_row_pairs : work_.scores,
                work_.dout_down, keys, work_.dvalues);
    add_to_keys(block, place, s_.key, pairs ? work_.slope_row_pairs : work_.slopes,
                work_.queries_down, keys, work_.dkeys);
    tile_product(s_.kind, {.m = block.rows,
                           .n = s_.key.columns,
                           .k = words(s_.kind, place.keys),
                           .a = pairs ? work_.slope_pairs : work_.slopes,
                           .a_row = words(s_.kind, kKeyColumns),
                           .a_step = 1,
                           .b = work_.keys_down + down(keys) + words(s_.kind, place.first) * kPanel,
                           .panel = words(s_.kind, s_.block_keys(keys)) * kPanel,
                           .c = floats(work_.dqueries),
                           .ldc = s_.key.columns,
                           .accumulate = true});
  }

  const AttentionBackwardArgs& args_;
  const AttentionSizes& s_;
  const KeyPlaces& places_;
  const HeadBias& bias_;
  int64_t sample_, key_head_;
  double* sinks_;        // [N], for the sample; null if dsinks is not requested
  BiasSums* bias_sums_;  // null if dbias is not requested
  GradientWorkspace& work_;
};

// to[n] -= sum over the samples of sums [samples, N], in order.
void add_sink_gradients(const double* sums, int64_t samples, const Accumulate& to) {
  const int64_t heads = to.out.size(0);
  float* out = to.out.data<float>();
  for (int64_t n = 0; n < heads; ++n) {
    double sum = 0;
    for (int64_t b = 0; b < samples; ++b) sum += sums[b * heads + n];
    out[n] = static_cast<float>((to.beta == 0 ? 0.0 : static_cast<double>(out[n])) - sum);
  }
}

}  // namespace

AttentionScratch attention_backward_scratch(const AttentionBackwardArgs& args, Stream& stream) {
  const AttentionSizes sizes(args);
  if (sizes.batch * sizes.kv_heads * sizes.key.elements == 0) return {};
  AttentionScratch scratch{.tile_bytes = GradientWorkspace(args, sizes, nullptr).bytes};
  Arena& arena = stream.scratch();
  scratch.positions = arena.allocate(KeyPlaces::bytes(sizes), "attention key positions");
  scratch.tiles =
      arena.allocate(scratch.tile_bytes * stream.target().threads, "attention gradient tiles");
  if (args.dsinks.out.defined())
    scratch.sinks = arena.allocate(args.q.size(0) * args.q.size(2) * 8, "attention sink gradients");
  if (args.bias.defined())
    scratch.bias = arena.allocate(HeadBias::bytes(args.bias), "attention bias");
  if (args.dbias.out.defined())
    scratch.bias_sums =
        arena.allocate(args.q.size(0) * args.q.size(2) * DistanceSlots(args.bias).count() * 8,
                       "attention bias gradients");
  return scratch;
}

void attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  require_attention_type("attention_backward", args.q.dtype());
  const AttentionScratch scratch = attention_backward_scratch(args, stream);
  if (scratch.tiles == nullptr) {
    if (args.dsinks.out.defined()) add_sink_gradients(nullptr, 0, args.dsinks);
    if (args.dbias.out.defined()) store_bias_gradient(nullptr, 0, args.dbias, stream);
    return;
  }
  const AttentionSizes sizes(args);
  const KeyPlaces places(sizes, scratch.positions);
  const HeadBias bias(args.bias, scratch.bias, stream);
  const int64_t heads = args.q.size(2);
  double* sinks =
      scratch.sinks == nullptr ? nullptr : reinterpret_cast<double*>(scratch.sinks->data());
  if (sinks != nullptr) std::fill_n(sinks, sizes.batch * heads, 0.0);
  double* bias_sums =
      scratch.bias_sums == nullptr ? nullptr : reinterpret_cast<double*>(scratch.bias_sums->data());
  // One thread computes a whole key head, so that the sums over its queries have a fixed order.
  stream.pool().parallel_for(sizes.batch * sizes.kv_heads, [&](int64_t head, int thread) {
    GradientWorkspace work(args, sizes, scratch.tiles->data() + thread * scratch.tile_bytes);
    const int64_t sample = head / sizes.kv_heads;
    double* of_sample = sinks == nullptr ? nullptr : sinks + sample * heads;
    const auto run = [&](BiasSums* of_bias) {
      KeyHeadGradient(args, sizes, places, bias, sample, head % sizes.kv_heads, of_sample, of_bias,
                      work)
          .run();
    };
    if (bias_sums == nullptr) return run(nullptr);
    const int64_t slots = DistanceSlots(args.bias).count();
    BiasSums of_bias(args.bias, sizes.group, work.bias_parts, work.dbias,
                     bias_sums + head * sizes.group * slots);
    run(&of_bias);
  });
  if (sinks != nullptr) add_sink_gradients(sinks, sizes.batch, args.dsinks);
  if (bias_sums != nullptr) store_bias_gradient(bias_sums, sizes.batch, args.dbias, stream);
}

}  // namespace megatron::kernels::cpu
