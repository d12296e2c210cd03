// dq of attention. Each block of threads processes a block of queries over keys in order.
#include "kernels/cuda/attention/gradients.h"
#include "kernels/cuda/dynamic_shared.h"

namespace megatron::kernels::cuda {
namespace {

template <int kWidth, int kRows, int kKeys>
struct QueryTiles {
  alignas(16) float q[kRows * padded(kWidth)];
  alignas(16) float dout[kRows * padded(kWidth)];
  alignas(16) float k[kKeys * padded(kWidth)];
  alignas(16) float v[kKeys * padded(kWidth)];
  alignas(16) float slopes[kRows * padded(kKeys)];
  RowPlaces<kRows> rows;
  RowStatistics<kRows> statistics;
  int keys[kKeys];
};

// Computes the tile's ds from the scores s and dp = dout v^T. With a bias, the slopes of the soft
// cap are left to cap_slopes().
template <bool kCapped, bool kBiased, int kWidth, int kTileRows, int kKeys, int kRows, int kColumns>
__device__ void slope_step(const AttentionCall& call, const HeadBlock& block, int first_key,
                           bool all, QueryTiles<kWidth, kTileRows, kKeys>& tiles,
                           const float (&s)[kRows][kColumns], float (&dp)[kRows][kColumns]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = tile_row<kRows>(i);
    if (call.dropout.active()) {
      const int head = block.head_of(call.places.group, block.first_row + row);
      const uint32_t kept = keeps_keys<kColumns>(call.dropout, call.dropout.key(head), block.number,
                                                 tiles.rows.position[row], first_key, tiles.keys);
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        dp[i][j] = (kept >> j & 1u) != 0 ? dp[i][j] * call.dropout.factor : 0.0f;
    }
    const float lse = tiles.statistics.lse[row], delta = tiles.statistics.delta[row];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int column = across() + j * kAcross;
      const bool seen = all || tiles.rows.sees(row, tiles.keys[column]);
      const float score = kCapped ? call.soft_cap.capped(s[i][j]) : s[i][j];
      float shift = -lse;
      if constexpr (kBiased)
        shift += block.bias_row(call, block.first_row + row, tiles.rows.position[row])
                     .at(tiles.keys[column]);
      const float p = seen ? exp2f(fmaf(score, call.scale, shift)) : 0.0f;
      float slope = p * (dp[i][j] - delta);
      if constexpr (kCapped && !kBiased) slope *= call.soft_cap.slope(score);
      tiles.slopes[row * padded(kKeys) + column] = slope;
    }
  }
}

// Multiplies this thread's ds of scores s by the slopes of the soft cap.
template <int kWidth, int kTileRows, int kKeys, int kRows, int kColumns>
__device__ void cap_slopes(const SoftCap& soft_cap, const float (&s)[kRows][kColumns],
                           QueryTiles<kWidth, kTileRows, kKeys>& tiles) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      tiles.slopes[tile_row<kRows>(i) * padded(kKeys) + across() + j * kAcross] *=
          soft_cap.slope(soft_cap.capped(s[i][j]));
  }
}

template <class T, int kWidth, int kTileRows, int kKeys, bool kBiased>
__global__ void __launch_bounds__(kTileThreads, 2) differentiate_queries(GradientCall<T> work) {
  constexpr int kRows = kTileRows / kDown, kColumns = kKeys / kAcross;
  using Tiles = QueryTiles<kWidth, kTileRows, kKeys>;
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic_shared());
  const AttentionCall& call = work.call;
  const Places& places = call.places;
  // Starts with the rows that see the most keys.
  const HeadBlock block(call, places.row_blocks - 1 - call.block(), kTileRows);
  const HeadRows<T> q(work.q, block.sample, block.key_head, places.group);
  const HeadRows<T> dout(work.dout, block.sample, block.key_head, places.group);
  const HeadRows<T> k(work.k, block.sample, block.key_head, 1);
  const HeadRows<T> v(work.v, block.sample, block.key_head, 1);
  load_tile<kTileRows, kWidth>(q, block.first_row, places.rows(), call.width, tiles.q);
  load_tile<kTileRows, kWidth>(dout, block.first_row, places.rows(), call.value_width, tiles.dout);
  tiles.rows.fill(places, block.sample, block.first_row);
  tiles.statistics.fill(work, block, block.first_row);
  const RowSpan span = places.row_span(block.sample, block.index);
  const int key_end = places.key_end(block.sample);
  float* bias_sums = nullptr;
  if constexpr (kBiased) bias_sums = work.sums_of(block);
  if (bias_sums != nullptr) clear_bias_sums(work.bias_sums, bias_sums, places.group);

  float sum[kRows][thread_columns(kWidth)] = {};
  for (int index = places.first_keys(span); index * kKeys < key_end; ++index) {
    const KeySpan keys = places.key_span(block.sample, index);
    if (!meet(span, keys)) continue;
    const int first_key = index * kKeys;
    __syncthreads();
    load_tile<kKeys, kWidth>(k, first_key, key_end, call.width, tiles.k);
    load_tile<kKeys, kWidth>(v, first_key, key_end, call.value_width, tiles.v);
    fill_keys(places, block.sample, first_key, key_end, tiles.keys);
    __syncthreads();
    float s[kRows][kColumns], dp[kRows][kColumns];
    tile_products<kWidth>(tiles.q, tiles.k, call.width, s);
    tile_products<kWidth>(tiles.dout, tiles.v, call.value_width, dp);
    const bool all = first_key + kKeys <= key_end && all_seen(span, keys);
    if (call.soft_cap.active()) {
      slope_step<true, kBiased>(call, block, first_key, all, tiles, s, dp);
    } else {
      slope_step<false, kBiased>(call, block, first_key, all, tiles, s, dp);
    }
    if constexpr (kBiased) {
      if (bias_sums != nullptr) {
        __syncthreads();
        add_bias_gradient<kTileRows, kKeys>(work.bias_sums, bias_sums, places, tiles.rows,
                                            block.first_row, tiles.keys, tiles.slopes);
        __syncthreads();
      }
      if (call.soft_cap.active()) cap_slopes(call.soft_cap, s, tiles);
    }
    __syncwarp();
    add_weighted<kWidth, kKeys>(tiles.slopes, tiles.k, sum);
  }
  store_gradient<kWidth>(work.dq, block, places.group, places.rows(), call.width, call.plain_scale,
                         sum);
}

}  // namespace

void query_gradient(const AttentionBackwardArgs& args, const Tensor& delta, const Tensor& spans,
                    const Tensor& bias_sums, Stream& stream) {
  if (on_tensor_cores(args))
    return tensor_core_query_gradient(args, delta, spans, bias_sums, stream);
  const AttentionBlocks blocks = query_gradient_blocks(args);
  for_tiles("attention_backward", args, [&](auto type, auto width) {
    using T = decltype(type);
    constexpr int kWidth = decltype(width)::value;
    constexpr AttentionTile kTile = gradient_tile(kWidth);
    const auto work = gradient_call<T>(args, blocks, delta, spans, stream, bias_sums);
    for_bias(args, [&](auto biased) {
      launch_tiles<QueryTiles<kWidth, kTile.rows, kTile.others>>(
          "attention_backward, dq",
          differentiate_queries<T, kWidth, kTile.rows, kTile.others, biased>, work,
          blocks.row_blocks, stream);
    });
  });
}

}  // namespace megatron::kernels::cuda
