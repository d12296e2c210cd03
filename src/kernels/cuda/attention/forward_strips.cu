// Forward pass of attention in bf16 and f16 on tensor cores. Weights are rounded for the product
// with values; scores and sums are f32.
#include <cmath>

#include "kernels/cuda/attention/forward.h"
#include "kernels/cuda/attention/strips.h"
#include "kernels/cuda/dynamic_shared.h"

namespace megatron::kernels::cuda {
namespace {

template <class T, int kWidth, bool kBiased>
struct ForwardStrips {
  static constexpr AttentionTile kTile = tensor_core_forward_tile(kWidth, kBiased);
  static constexpr int kRows = kTile.rows, kKeys = kTile.others;
  static constexpr int kStrips = kRows / (kTileWarps * kStripRows);

  alignas(16) T q[kRows * strip_pitch(kWidth)];
  alignas(16) T k[2][kKeys * strip_pitch(kWidth)];
  alignas(16) T v[2][kKeys * strip_pitch(kWidth)];
  RowPlaces<kRows> rows;
  alignas(8) int keys[2][kKeys];
};

// State of a lane's two rows of a strip: the largest score in units of ln 2, this lane's part of
// the sum of 2^(score - maximum), and its columns of the weighted sum of values.
template <int kWidth, int kStrips>
struct SoftmaxStrips {
  float maximum[kStrips][2], sum[kStrips][2], out[kStrips][kWidth / 8][4];
};

// Adds the bias to scores of the rows `row` and `row` + 8.
template <int kRows, int kBlocks>
__device__ void shift_strip(const AttentionCall& call, const HeadBlock& block,
                            const RowPlaces<kRows>& rows, int row, const int* keys,
                            float (&s)[kBlocks][4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + 8 * h;
    const BiasRow bias = block.bias_row(call, block.first_row + r, rows.position[r]);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const Vector<int, 2> key = load_vector<int, 2>(keys + 8 * j + 2 * strip_pair());
#pragma unroll
      for (int e = 0; e < 2; ++e) s[j][2 * h + e] += bias.at(key.at[e]);
    }
  }
}

// One step of the online softmax for row h of strip i: replaces scores by weights. A row that has
// seen no key keeps -infinity.
template <int kWidth, int kStrips, int kBlocks>
__device__ void softmax_row(int i, int h, float (&s)[kBlocks][4],
                            SoftmaxStrips<kWidth, kStrips>& state) {
  float highest = -INFINITY;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) highest = fmaxf(highest, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
  highest = fmaxf(strip_max(highest), state.maximum[i][h]);
  const float base = highest == -INFINITY ? 0.0f : highest;
  const float fade = exp2f(state.maximum[i][h] - base);
  state.maximum[i][h] = highest;
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int n = 2 * h; n < 2 * h + 2; ++n) sum += s[j][n] = exp2f(s[j][n] - base);
  }
  state.sum[i][h] = fmaf(state.sum[i][h], fade, sum);
#pragma unroll
  for (int c = 0; c < kWidth / 8; ++c) {
    state.out[i][c][2 * h] *= fade;
    state.out[i][c][2 * h + 1] *= fade;
  }
}

template <int kBlocks>
__device__ void drop(const KeptKeys& kept, float (&s)[kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int n = 0; n < 4; ++n) s[j][n] = kept.at(n / 2, j, n % 2) ? s[j][n] : 0.0f;
  }
}

// Processes a warp's rows, from the tile's row `first` on, and the block of keys in `stage`.
template <class T, bool kBiased, int kWidth, int kStrips>
__device__ void attend_step(const AttentionCall& call, const HeadBlock& block, int first,
                            int first_key, bool all, const ForwardStrips<T, kWidth, kBiased>& tiles,
                            int stage, SoftmaxStrips<kWidth, kStrips>& state) {
  constexpr int kKeys = ForwardStrips<T, kWidth, kBiased>::kKeys;
  const int* keys = tiles.keys[stage];
  float s[kStrips][kKeys / 8][4];
  strip_products<kWidth>(tiles.q + first * strip_pitch(kWidth), tiles.k[stage], s);
#pragma unroll
  for (int i = 0; i < kStrips; ++i) {
    if (call.soft_cap.active()) {
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) call.soft_cap.cap(s[i][j]);
    }
    const int row = first + i * kStripRows;
    mask_strip(call.scale, all, tiles.rows, row + strip_row(), keys, s[i]);
    if constexpr (kBiased) shift_strip(call, block, tiles.rows, row + strip_row(), keys, s[i]);
    softmax_row(i, 0, s[i], state);
    softmax_row(i, 1, s[i], state);
    if (call.dropout.active())
      drop(kept_keys<kKeys>(call, block, tiles.rows, row, first_key, keys), s[i]);
  }
  add_strips<kWidth>(s, tiles.v[stage], state.out);
}

template <class T, int kWidth, int kStrips>
__device__ void store_results(const ForwardCall<T>& work, const HeadBlock& block, int first,
                              SoftmaxStrips<kWidth, kStrips>& state, T* staging) {
  const Places& places = work.call.places;
  const float kept = work.call.dropout.active() ? work.call.dropout.factor : 1.0f;
#pragma unroll
  for (int i = 0; i < kStrips; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = block.first_row + first + i * kStripRows + strip_row() + 8 * h;
      const RowTotal total(state.maximum[i][h], strip_sum(state.sum[i][h]), work.sinks,
                           block.head_of(places.group, row), kept);
#pragma unroll
      for (int c = 0; c < kWidth / 8; ++c) {
        state.out[i][c][2 * h] *= total.factor;
        state.out[i][c][2 * h + 1] *= total.factor;
      }
      if (strip_pair() == 0 && row < places.rows())
        work.lse[statistics_index(work.call, block, row)] = total.lse;
    }
  }
  const HeadRows<T> out(work.out, block.sample, block.key_head, places.group);
  store_strips<kWidth>(out, block.first_row + first, places.rows(), work.call.value_width,
                       state.out, staging);
}

template <class T, int kWidth, bool kBiased>
__global__ void __launch_bounds__(kTileThreads, 2) attend_strips(ForwardCall<T> work) {
  using Tiles = ForwardStrips<T, kWidth, kBiased>;
  constexpr int kRows = Tiles::kRows, kKeys = Tiles::kKeys, kStrips = Tiles::kStrips;
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic_shared());
  const AttentionCall& call = work.call;
  const Places& places = call.places;
  // Starts with the rows that see the most keys.
  const HeadBlock block(call, places.row_blocks - 1 - call.block(), kRows);
  const HeadRows<T> q(work.q, block.sample, block.key_head, places.group);
  const KeyRows<T> k(work.k, work.pages, block.sample, block.key_head);
  const KeyRows<T> v(work.v, work.pages, block.sample, block.key_head);
  const RowSpan span = places.row_span(block.sample, block.index);
  const int key_end = places.key_end(block.sample);
  const auto fetch = [&](int index, int stage) {
    fetch_tile<kKeys, kWidth>(k, index * kKeys, key_end, call.width, tiles.k[stage]);
    fetch_tile<kKeys, kWidth>(v, index * kKeys, key_end, call.value_width, tiles.v[stage]);
    fill_keys(places, block.sample, index * kKeys, key_end, tiles.keys[stage]);
  };
  fetch_tile<kRows, kWidth>(q, block.first_row, places.rows(), call.width, tiles.q);
  tiles.rows.fill(places, block.sample, block.first_row);
  int index = next_keys(places, block.sample, span, places.first_keys(span), key_end);
  if (index < places.key_blocks) fetch(index, 0);

  SoftmaxStrips<kWidth, kStrips> state;
#pragma unroll
  for (int i = 0; i < kStrips; ++i) {
    for (int h = 0; h < 2; ++h) state.maximum[i][h] = -INFINITY;
    for (int h = 0; h < 2; ++h) state.sum[i][h] = 0;
#pragma unroll
    for (int c = 0; c < kWidth / 8; ++c)
      for (int n = 0; n < 4; ++n) state.out[i][c][n] = 0;
  }
  wait_for_copies();
  __syncthreads();
  const int first = warp_of_block() * kStrips * kStripRows;
  const RowSpan own = span_of_strips<kStrips>(tiles.rows, first);
  for (int stage = 0; index < places.key_blocks; stage ^= 1) {
    const int next = next_keys(places, block.sample, span, index + 1, key_end);
    if (next < places.key_blocks) fetch(next, stage ^ 1);
    const KeySpan keys = places.key_span(block.sample, index);
    if (meet(own, keys)) {
      const bool all = (index + 1) * kKeys <= key_end && all_seen(own, keys);
      attend_step<T, kBiased>(call, block, first, index * kKeys, all, tiles, stage, state);
    }
    wait_for_copies();
    __syncthreads();
    index = next;
  }
  store_results(work, block, first, state, tiles.q + first * strip_pitch(kWidth));
}

}  // namespace

void tensor_core_attention(const AttentionArgs& args, const Tensor& spans, Stream& stream) {
  const AttentionBlocks blocks = forward_blocks(args);
  for_half_type(args.q.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto work = forward_call<T>(args, blocks, spans, stream);
    for_tensor_core_width(head_width(args), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      for_bias(args, [&](auto biased) {
        launch_tiles<ForwardStrips<T, kWidth, biased>>(
            "attention", attend_strips<T, kWidth, biased>, work, blocks.row_blocks, stream);
      });
    });
  });
}

}  // namespace megatron::kernels::cuda
