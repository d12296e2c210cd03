// dk and dv of attention. Each block of threads processes a block of keys over the queries, in
// order, of all heads that share the keys.
#include "kernels/cuda/attention/gradients.h"
#include "kernels/cuda/dynamic_shared.h"

namespace megatron::kernels::cuda {
namespace {

template <int kWidth, int kKeys, int kQueries>
struct KeyTiles {
  alignas(16) float k[kKeys * padded(kWidth)];
  alignas(16) float v[kKeys * padded(kWidth)];
  alignas(16) float q[kQueries * padded(kWidth)];
  alignas(16) float dout[kQueries * padded(kWidth)];
  alignas(16) float weights[kKeys * padded(kQueries)];  // factors of dout, then of q
  RowPlaces<kQueries> rows;
  RowStatistics<kQueries> statistics;
  int keys[kKeys];
};

// Replaces s, the scores of keys and queries, by f p, and dp = v dout^T by ds.
template <bool kCapped, bool kBiased, int kWidth, int kKeys, int kQueries, int kRows, int kColumns>
__device__ void gradient_step(const AttentionCall& call, const HeadBlock& block, int first_query,
                              bool all, const KeyTiles<kWidth, kKeys, kQueries>& tiles,
                              float (&s)[kRows][kColumns], float (&dp)[kRows][kColumns]) {
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const int query = across() + j * kAcross;
    const float lse = tiles.statistics.lse[query], delta = tiles.statistics.delta[query];
    uint32_t kept = ~0u;
    float factor = 1;
    if (call.dropout.active()) {
      const int head = block.head_of(call.places.group, first_query + query);
      kept = keeps_rows<kRows>(call.dropout, call.dropout.key(head), block.number,
                               tiles.rows.position[query], block.first_row, tiles.keys);
      factor = call.dropout.factor;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool seen = all || tiles.rows.sees(query, tiles.keys[tile_row<kRows>(i)]);
      const float score = kCapped ? call.soft_cap.capped(s[i][j]) : s[i][j];
      float shift = -lse;
      if constexpr (kBiased)
        shift += block.bias_row(call, first_query + query, tiles.rows.position[query])
                     .at(tiles.keys[tile_row<kRows>(i)]);
      const float p = seen ? exp2f(fmaf(score, call.scale, shift)) : 0.0f;
      const float f = (kept >> i & 1u) != 0 ? factor : 0.0f;
      s[i][j] = p * f;
      dp[i][j] = p * (dp[i][j] * f - delta);
      if constexpr (kCapped) dp[i][j] *= call.soft_cap.slope(score);
    }
  }
}

// tile[tile_row(i)][across + 16 j] = x[i][j].
template <int kPitch, int kRows, int kColumns>
__device__ void store_weights(const float (&x)[kRows][kColumns], float* tile) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      tile[tile_row<kRows>(i) * kPitch + across() + j * kAcross] = x[i][j];
  }
}

template <class T, int kWidth, int kKeys, int kQueries, bool kBiased>
__global__ void __launch_bounds__(kTileThreads, 2) differentiate_keys(GradientCall<T> work) {
  constexpr int kRows = kKeys / kDown, kColumns = kQueries / kAcross;
  using Tiles = KeyTiles<kWidth, kKeys, kQueries>;
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic_shared());
  const AttentionCall& call = work.call;
  const Places& places = call.places;
  const HeadBlock block(call, call.block(), kKeys);
  const HeadRows<T> q(work.q, block.sample, block.key_head, places.group);
  const HeadRows<T> dout(work.dout, block.sample, block.key_head, places.group);
  const HeadRows<T> k(work.k, block.sample, block.key_head, 1);
  const HeadRows<T> v(work.v, block.sample, block.key_head, 1);
  const int key_end = places.key_end(block.sample);
  load_tile<kKeys, kWidth>(k, block.first_row, key_end, call.width, tiles.k);
  load_tile<kKeys, kWidth>(v, block.first_row, key_end, call.value_width, tiles.v);
  fill_keys(places, block.sample, block.first_row, key_end, tiles.keys);
  const KeySpan keys = places.key_span(block.sample, block.index);

  float dk[kRows][thread_columns(kWidth)] = {}, dv[kRows][thread_columns(kWidth)] = {};
  const int row_blocks = block.first_row < key_end ? places.row_blocks : 0;
  for (int index = places.first_rows(keys); index < row_blocks; ++index) {
    const RowSpan span = places.row_span(block.sample, index);
    if (places.past(span, keys)) break;
    if (!meet(span, keys)) continue;
    const int first_query = index * kQueries;
    __syncthreads();
    load_tile<kQueries, kWidth>(q, first_query, places.rows(), call.width, tiles.q);
    load_tile<kQueries, kWidth>(dout, first_query, places.rows(), call.value_width, tiles.dout);
    tiles.rows.fill(places, block.sample, first_query);
    tiles.statistics.fill(work, block, first_query);
    __syncthreads();
    float s[kRows][kColumns], dp[kRows][kColumns];
    tile_products<kWidth>(tiles.k, tiles.q, call.width, s);
    tile_products<kWidth>(tiles.v, tiles.dout, call.value_width, dp);
    const bool all = block.first_row + kKeys <= key_end && all_seen(span, keys);
    if (call.soft_cap.active()) {
      gradient_step<true, kBiased>(call, block, first_query, all, tiles, s, dp);
    } else {
      gradient_step<false, kBiased>(call, block, first_query, all, tiles, s, dp);
    }
    store_weights<padded(kQueries)>(s, tiles.weights);
    __syncwarp();
    add_weighted<kWidth, kQueries>(tiles.weights, tiles.dout, dv);
    __syncwarp();
    store_weights<padded(kQueries)>(dp, tiles.weights);
    __syncwarp();
    add_weighted<kWidth, kQueries>(tiles.weights, tiles.q, dk);
  }
  store_gradient<kWidth>(work.dk, block, 1, places.keys, call.width, call.plain_scale, dk);
  store_gradient<kWidth>(work.dv, block, 1, places.keys, call.value_width, 1.0f, dv);
}

}  // namespace

void key_gradient(const AttentionBackwardArgs& args, const Tensor& delta, const Tensor& spans,
                  Stream& stream) {
  if (on_tensor_cores(args)) return tensor_core_key_gradient(args, delta, spans, stream);
  const AttentionBlocks blocks = key_gradient_blocks(args);
  for_tiles("attention_backward", args, [&](auto type, auto width) {
    using T = decltype(type);
    constexpr int kWidth = decltype(width)::value;
    constexpr AttentionTile kTile = gradient_tile(kWidth);
    const auto work = gradient_call<T>(args, blocks, delta, spans, stream);
    for_bias(args, [&](auto biased) {
      launch_tiles<KeyTiles<kWidth, kTile.rows, kTile.others>>(
          "attention_backward, dk and dv",
          differentiate_keys<T, kWidth, kTile.rows, kTile.others, biased>, work, blocks.key_blocks,
          stream);
    });
  });
}

}  // namespace megatron::kernels::cuda
