// Forward pass of attention in tiles of f32: the online softmax of a thread's rows.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/forward.h"

namespace megatron::kernels::cuda {

// State of a thread's rows: the largest score in units of ln 2, this thread's part of the sum of
// 2^(score - maximum), and its columns of the weighted sum of values.
template <int kWidth, int kRows>
struct SoftmaxRows {
  float maximum[kRows], sum[kRows], out[kRows][thread_columns(kWidth)];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      maximum[i] = -INFINITY;
      sum[i] = 0;
#pragma unroll
      for (int c = 0; c < thread_columns(kWidth); ++c) out[i][c] = 0;
    }
  }
  // Sum of the weights of the whole row. Called by all threads.
  __device__ float whole_sum(int i) const {
    float whole = sum[i];
#pragma unroll
    for (int distance = kAcross / 2; distance > 0; distance /= 2)
      whole += __shfl_xor_sync(kAllLanes, whole, distance);
    return whole;
  }
};

// One step of the online softmax: s holds scores, from which the tile's weights are computed. A row
// that has seen no key keeps -infinity.
template <bool kBiased, class Tiles, int kWidth, int kRows, int kColumns>
__device__ void softmax_step(const AttentionCall& call, const HeadBlock& block, int first_key,
                             bool all, Tiles& tiles, float (&s)[kRows][kColumns],
                             SoftmaxRows<kWidth, kRows>& state) {
  constexpr int kKeys = kColumns * kAcross;
  if (call.soft_cap.active()) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) call.soft_cap.cap(s[i]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = tile_row<kRows>(i);
    float highest = -INFINITY;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const bool seen = all || tiles.rows.sees(row, tiles.keys[across() + j * kAcross]);
      s[i][j] = seen ? s[i][j] * call.scale : -INFINITY;
      if constexpr (kBiased)
        s[i][j] += block.bias_row(call, block.first_row + row, tiles.rows.position[row])
                       .at(tiles.keys[across() + j * kAcross]);
      highest = fmaxf(highest, s[i][j]);
    }
#pragma unroll
    for (int distance = kAcross / 2; distance > 0; distance /= 2)
      highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, distance));
    highest = fmaxf(highest, state.maximum[i]);
    const float base = highest == -INFINITY ? 0.0f : highest;
    const float fade = exp2f(state.maximum[i] - base);
    state.maximum[i] = highest;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum += s[i][j] = exp2f(s[i][j] - base);
    state.sum[i] = fmaf(state.sum[i], fade, sum);
#pragma unroll
    for (int c = 0; c < thread_columns(kWidth); ++c) state.out[i][c] *= fade;
    if (call.dropout.active()) {
      const int head = block.head_of(call.places.group, block.first_row + row);
      const uint32_t kept = keeps_keys<kColumns>(call.dropout, call.dropout.key(head), block.number,
                                                 tiles.rows.position[row], first_key, tiles.keys);
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        s[i][j] = (kept >> j & 1u) != 0 ? s[i][j] * call.dropout.factor : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      tiles.weights[row * padded(kKeys) + across() + j * kAcross] = s[i][j];
  }
}

template <class T, int kWidth, int kRows>
__device__ void store_rows(const ForwardCall<T>& work, const HeadBlock& block,
                           const SoftmaxRows<kWidth, kRows>& state) {
  const Places& places = work.call.places;
  const HeadRows<T> out(work.out, block.sample, block.key_head, places.group);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float sum = state.whole_sum(i);
    const int row = block.first_row + tile_row<kRows>(i);
    if (row >= places.rows()) continue;
    const RowTotal total(state.maximum[i], sum, work.sinks, block.head_of(places.group, row), 1.0f);
    store_columns<kWidth>(out.row(row), out.whole, work.call.value_width, total.factor,
                          state.out[i]);
    if (across() == 0) work.lse[statistics_index(work.call, block, row)] = total.lse;
  }
}

}  // namespace megatron::kernels::cuda
