// dq of attention in bf16 and f16 on tensor cores. Gradients of scores are rounded for the product
// with keys.
#include "kernels/cuda/attention/gradients.h"
#include "kernels/cuda/attention/strips.h"
#include "kernels/cuda/dynamic_shared.h"

namespace megatron::kernels::cuda {
namespace {

template <class T, int kWidth, bool kBiased>
struct QueryStrips {
  static constexpr AttentionTile kTile = tensor_core_gradient_tile(kWidth, kBiased);
  static constexpr int kRows = kTile.rows, kKeys = kTile.others;
  static_assert(kRows == kTileWarps * kStripRows);

  alignas(16) T q[kRows * strip_pitch(kWidth)];
  alignas(16) T dout[kRows * strip_pitch(kWidth)];
  alignas(16) T k[2][kKeys * strip_pitch(kWidth)];
  alignas(16) T v[2][kKeys * strip_pitch(kWidth)];
  RowPlaces<kRows> rows;
  RowStatistics<kRows> statistics;
  alignas(8) int keys[2][kKeys];
  alignas(16) float slopes[kBiased ? kRows * padded(kKeys) : 1];  // gradient of the bias
};

// Computes ds from a strip's products s and dp = dout v^T, and writes it over s; with a bias, also
// to tiles.slopes, where it is not multiplied by the slope of the soft cap.
template <bool kCapped, bool kBiased, class T, int kWidth, int kBlocks>
__device__ void slope_strip(const AttentionCall& call, const HeadBlock& block, int first,
                            int first_key, bool all, QueryStrips<T, kWidth, kBiased>& tiles,
                            int stage, float (&s)[kBlocks][4], float (&dp)[kBlocks][4]) {
  const int* keys = tiles.keys[stage];
  if (call.dropout.active()) {
    const KeptKeys kept = kept_keys<8 * kBlocks>(call, block, tiles.rows, first, first_key, keys);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int n = 0; n < 4; ++n)
        dp[j][n] = kept.at(n / 2, j, n % 2) ? dp[j][n] * call.dropout.factor : 0.0f;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + strip_row() + 8 * h;
    const float lse = tiles.statistics.lse[row], delta = tiles.statistics.delta[row];
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      Vector<int, 2> key{};
      if (kBiased || !all) key = load_vector<int, 2>(keys + 8 * j + 2 * strip_pair());
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool seen = all || tiles.rows.sees(row, key.at[e]);
        float& x = s[j][2 * h + e];
        const float score = kCapped ? call.soft_cap.capped(x) : x;
        float shift = -lse;
        if constexpr (kBiased)
          shift +=
              block.bias_row(call, block.first_row + row, tiles.rows.position[row]).at(key.at[e]);
        const float p = seen ? exp2f(fmaf(score, call.scale, shift)) : 0.0f;
        x = p * (dp[j][2 * h + e] - delta);
        if constexpr (kBiased)
          tiles.slopes[row * padded(8 * kBlocks) + 8 * j + 2 * strip_pair() + e] = x;
        if constexpr (kCapped) x *= call.soft_cap.slope(score);
      }
    }
  }
}

// Sets the slopes of a warp's rows, from the tile's row `first` on, to 0.
template <class Tiles>
__device__ void clear_slopes(Tiles& tiles, int first) {
  constexpr int kPitch = padded(Tiles::kKeys);
  for (int i = lane_of_warp(); i < kStripRows * kPitch; i += kWarp)
    tiles.slopes[first * kPitch + i] = 0;
}

template <class T, int kWidth, bool kBiased>
__global__ void __launch_bounds__(kTileThreads, 2)
    differentiate_query_strips(GradientCall<T> work) {
  using Tiles = QueryStrips<T, kWidth, kBiased>;
  constexpr int kRows = Tiles::kRows, kKeys = Tiles::kKeys, kPitch = strip_pitch(kWidth);
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic_shared());
  const AttentionCall& call = work.call;
  const Places& places = call.places;
  // Starts with the rows that see the most keys.
  const HeadBlock block(call, places.row_blocks - 1 - call.block(), kRows);
  const HeadRows<T> q(work.q, block.sample, block.key_head, places.group);
  const HeadRows<T> dout(work.dout, block.sample, block.key_head, places.group);
  const HeadRows<T> k(work.k, block.sample, block.key_head, 1);
  const HeadRows<T> v(work.v, block.sample, block.key_head, 1);
  const RowSpan span = places.row_span(block.sample, block.index);
  const int key_end = places.key_end(block.sample);
  const auto fetch = [&](int index, int stage) {
    fetch_tile<kKeys, kWidth>(k, index * kKeys, key_end, call.width, tiles.k[stage]);
    fetch_tile<kKeys, kWidth>(v, index * kKeys, key_end, call.value_width, tiles.v[stage]);
    fill_keys(places, block.sample, index * kKeys, key_end, tiles.keys[stage]);
  };
  fetch_tile<kRows, kWidth>(q, block.first_row, places.rows(), call.width, tiles.q);
  fetch_tile<kRows, kWidth>(dout, block.first_row, places.rows(), call.value_width, tiles.dout);
  int index = next_keys(places, block.sample, span, places.first_keys(span), key_end);
  if (index < places.key_blocks) fetch(index, 0);
  tiles.rows.fill(places, block.sample, block.first_row);
  tiles.statistics.fill(work, block, block.first_row);
  float* bias_sums = nullptr;
  if constexpr (kBiased) bias_sums = work.sums_of(block);
  if (bias_sums != nullptr) clear_bias_sums(work.bias_sums, bias_sums, places.group);

  float sum[1][kWidth / 8][4] = {};
  wait_for_copies();
  __syncthreads();
  const int first = warp_of_block() * kStripRows;
  const RowSpan own = span_of_strips<1>(tiles.rows, first);
  for (int stage = 0; index < places.key_blocks; stage ^= 1) {
    const int next = next_keys(places, block.sample, span, index + 1, key_end);
    if (next < places.key_blocks) fetch(next, stage ^ 1);
    const KeySpan keys = places.key_span(block.sample, index);
    if (meet(own, keys)) {
      const bool all = (index + 1) * kKeys <= key_end && all_seen(own, keys);
      float s[1][kKeys / 8][4], dp[1][kKeys / 8][4];
      strip_products<kWidth>(tiles.q + first * kPitch, tiles.k[stage], s);
      strip_products<kWidth>(tiles.dout + first * kPitch, tiles.v[stage], dp);
      if (call.soft_cap.active()) {
        slope_strip<true, kBiased>(call, block, first, index * kKeys, all, tiles, stage, s[0],
                                   dp[0]);
      } else {
        slope_strip<false, kBiased>(call, block, first, index * kKeys, all, tiles, stage, s[0],
                                    dp[0]);
      }
      add_strips<kWidth>(s, tiles.k[stage], sum);
    } else if constexpr (kBiased) {
      clear_slopes(tiles, first);
    }
    if constexpr (kBiased) {
      if (bias_sums != nullptr) {
        __syncthreads();
        add_bias_gradient<kRows, kKeys>(work.bias_sums, bias_sums, places, tiles.rows,
                                        block.first_row, tiles.keys[stage], tiles.slopes);
      }
    }
    wait_for_copies();
    __syncthreads();
    index = next;
  }
  scale_strip(call.plain_scale, sum[0]);
  store_gradient_strips<kWidth>(work.dq, block, places.group, first, places.rows(), call.width, sum,
                                tiles.q + first * kPitch);
}

}  // namespace

void tensor_core_query_gradient(const AttentionBackwardArgs& args, const Tensor& delta,
                                const Tensor& spans, const Tensor& bias_sums, Stream& stream) {
  const AttentionBlocks blocks = query_gradient_blocks(args);
  for_half_type(args.q.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto work = gradient_call<T>(args, blocks, delta, spans, stream, bias_sums);
    for_tensor_core_width(head_width(args), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      for_bias(args, [&](auto biased) {
        launch_tiles<QueryStrips<T, kWidth, biased>>("attention_backward, dq",
                                                     differentiate_query_strips<T, kWidth, biased>,
                                                     work, blocks.row_blocks, stream);
      });
    });
  });
}

}  // namespace megatron::kernels::cuda
