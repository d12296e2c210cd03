// dk and dv of attention in bf16 and f16 on tensor cores. Weights and gradients of scores are
// rounded for the products with dout and with queries.
#include "kernels/cuda/attention/gradients.h"
#include "kernels/cuda/attention/strips.h"
#include "kernels/cuda/dynamic_shared.h"

namespace megatron::kernels::cuda {
namespace {

// A block of queries.
template <class T, int kWidth, int kQueries, bool kBiased>
struct QueryTile {
  alignas(16) T q[kQueries * strip_pitch(kWidth)];
  alignas(16) T dout[kQueries * strip_pitch(kWidth)];
  alignas(8) float lse[kQueries];
  alignas(8) float delta[kQueries];
  alignas(8) uint64_t draws[kQueries];  // dropout generator keys
  RowPlaces<kQueries> rows;
  int bias[kBiased ? kQueries : 1];  // index of the first value of the head's bias

  // Called by all threads of a block. lse and delta are copied as they are stored.
  __device__ void fetch(const GradientCall<T>& work, const HeadBlock& block, int first) {
    const AttentionCall& call = work.call;
    const Places& places = call.places;
    const int end = places.rows();
    const HeadRows<T> queries(work.q, block.sample, block.key_head, places.group);
    const HeadRows<T> douts(work.dout, block.sample, block.key_head, places.group);
    fetch_tile<kQueries, kWidth>(queries, first, end, call.width, q);
    fetch_tile<kQueries, kWidth>(douts, first, end, call.value_width, dout);
    for (int i = threadIdx.x; i < kQueries; i += kTileThreads) {
      const bool there = first + i < end;
      const int64_t at = there ? statistics_index(call, block, first + i) : 0;
      copy_later<sizeof(float)>(lse + i, work.lse + at, there);
      copy_later<sizeof(float)>(delta + i, work.delta + at, there);
      if (call.dropout.active())
        draws[i] = call.dropout.key(block.head_of(places.group, first + i));
      if constexpr (kBiased)
        bias[i] = block.head_of(places.group, first + i) * call.bias.head_stride;
    }
    rows.fill(places, block.sample, first);
  }
};

template <class T, int kWidth, bool kBiased>
struct KeyStrips {
  static constexpr AttentionTile kTile = tensor_core_gradient_tile(kWidth, kBiased);
  static constexpr int kKeys = kTile.rows, kQueries = kTile.others;
  static_assert(kKeys == kTileWarps * kStripRows);

  alignas(16) T k[kKeys * strip_pitch(kWidth)];
  alignas(16) T v[kKeys * strip_pitch(kWidth)];
  QueryTile<T, kWidth, kQueries, kBiased> queries[2];
};

// A strip's keys: positions of this lane's two rows, and the span of the whole strip.
struct OwnKeys {
  __device__ OwnKeys(const Places& places, int sample, int first, int end) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int index = first + strip_row() + 8 * h;
      key[h] = index < end ? places.key(sample, index) : kNever;
    }
    span = {min(key[0], key[1]), max(key[0], key[1])};
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      span.lowest = min(span.lowest, __shfl_xor_sync(kAllLanes, span.lowest, distance));
      span.highest = max(span.highest, __shfl_xor_sync(kAllLanes, span.highest, distance));
    }
  }
  int key[2];
  KeySpan span;
};

// Replaces a strip's products s and dp = v dout^T by f p and ds. Rows beyond the last have zeros
// for q, dout, lse and delta, which contribute nothing to either gradient; with a bias they are
// masked, since their weight may be infinite.
template <bool kCapped, bool kBiased, class T, int kWidth, int kQueries, int kBlocks>
__device__ void gradient_strip(const AttentionCall& call, const HeadBlock& block, int first_key,
                               bool all, const OwnKeys& own,
                               const QueryTile<T, kWidth, kQueries, kBiased>& tile,
                               float (&s)[kBlocks][4], float (&dp)[kBlocks][4]) {
  static_assert(kBlocks == kQueries / 8);
  const bool drops = call.dropout.active();
  KeptQueries kept{};
  if (drops) kept = kept_queries(call.dropout, block, tile.rows, tile.draws, first_key, own.key);
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    const int query = 8 * j + 2 * strip_pair();
    const auto lse = load_vector<float, 2>(tile.lse + query);
    const auto delta = load_vector<float, 2>(tile.delta + query);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int e = n % 2, h = n / 2;
      const bool seen = (all && !kBiased) || tile.rows.sees(query + e, own.key[h]);
      const float base = lse.at[e] * static_cast<float>(kLog2e);
      const float score = kCapped ? call.soft_cap.capped(s[j][n]) : s[j][n];
      float shift = -base;
      if constexpr (kBiased)
        shift +=
            BiasRow(call.bias, tile.bias[query + e], tile.rows.position[query + e]).at(own.key[h]);
      const float p = seen ? exp2f(fmaf(score, call.scale, shift)) : 0.0f;
      const float f = !drops ? 1.0f : kept.at(h, j, e) ? call.dropout.factor : 0.0f;
      s[j][n] = p * f;
      dp[j][n] = p * (dp[j][n] * f - delta.at[e]);
      if constexpr (kCapped) dp[j][n] *= call.soft_cap.slope(score);
    }
  }
}

// Index of the first block of query rows from `index` on that may see the keys; places.row_blocks
// if there is none.
__device__ inline int next_rows(const Places& places, int sample, const KeySpan& keys, int index) {
  for (; index < places.row_blocks; ++index) {
    const RowSpan rows = places.row_span(sample, index);
    if (places.past(rows, keys)) break;
    if (meet(rows, keys)) return index;
  }
  return places.row_blocks;
}

template <class T, int kWidth, bool kBiased>
__global__ void __launch_bounds__(kTileThreads, 2) differentiate_key_strips(GradientCall<T> work) {
  using Tiles = KeyStrips<T, kWidth, kBiased>;
  constexpr int kKeys = Tiles::kKeys, kQueries = Tiles::kQueries, kPitch = strip_pitch(kWidth);
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic_shared());
  const AttentionCall& call = work.call;
  const Places& places = call.places;
  const HeadBlock block(call, call.block(), kKeys);
  const int key_end = places.key_end(block.sample);
  const KeySpan keys = places.key_span(block.sample, block.index);
  fetch_tile<kKeys, kWidth>(HeadRows<T>(work.k, block.sample, block.key_head, 1), block.first_row,
                            key_end, call.width, tiles.k);
  fetch_tile<kKeys, kWidth>(HeadRows<T>(work.v, block.sample, block.key_head, 1), block.first_row,
                            key_end, call.value_width, tiles.v);
  int index = block.first_row < key_end
                  ? next_rows(places, block.sample, keys, places.first_rows(keys))
                  : places.row_blocks;
  if (index < places.row_blocks) tiles.queries[0].fetch(work, block, index * kQueries);

  float dk[1][kWidth / 8][4] = {}, dv[1][kWidth / 8][4] = {};
  const int first = warp_of_block() * kStripRows;
  const OwnKeys own(places, block.sample, block.first_row + first, key_end);
  wait_for_copies();
  __syncthreads();
  for (int stage = 0; index < places.row_blocks; stage ^= 1) {
    const int next = next_rows(places, block.sample, keys, index + 1);
    if (next < places.row_blocks) tiles.queries[stage ^ 1].fetch(work, block, next * kQueries);
    const RowSpan span = places.row_span(block.sample, index);
    if (meet(span, own.span)) {
      const bool all = all_seen(span, own.span);
      const auto& tile = tiles.queries[stage];
      float s[1][kQueries / 8][4], dp[1][kQueries / 8][4];
      strip_products<kWidth>(tiles.k + first * kPitch, tile.q, s);
      strip_products<kWidth>(tiles.v + first * kPitch, tile.dout, dp);
      if (call.soft_cap.active()) {
        gradient_strip<true, kBiased>(call, block, block.first_row + first, all, own, tile, s[0],
                                      dp[0]);
      } else {
        gradient_strip<false, kBiased>(call, block, block.first_row + first, all, own, tile, s[0],
                                       dp[0]);
      }
      add_strips<kWidth>(s, tile.dout, dv);
      add_strips<kWidth>(dp, tile.q, dk);
    }
    wait_for_copies();
    __syncthreads();
    index = next;
  }
  scale_strip(call.plain_scale, dk[0]);
  store_gradient_strips<kWidth>(work.dk, block, 1, first, places.keys, call.width, dk,
                                tiles.k + first * kPitch);
  store_gradient_strips<kWidth>(work.dv, block, 1, first, places.keys, call.value_width, dv,
                                tiles.v + first * kPitch);
}

}  // namespace

void tensor_core_key_gradient(const AttentionBackwardArgs& args, const Tensor& delta,
                              const Tensor& spans, Stream& stream) {
  const AttentionBlocks blocks = key_gradient_blocks(args);
  for_half_type(args.q.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto work = gradient_call<T>(args, blocks, delta, spans, stream);
    for_tensor_core_width(head_width(args), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      for_bias(args, [&](auto biased) {
        launch_tiles<KeyStrips<T, kWidth, biased>>("attention_backward, dk and dv",
                                                   differentiate_key_strips<T, kWidth, biased>,
                                                   work, blocks.key_blocks, stream);
      });
    });
  });
}

}  // namespace megatron::kernels::cuda
