// Attention in f32, and with wide heads in bf16 and f16, by f32 multiplications and additions.
#include <cmath>

#include "kernels/cuda/attention/forward.h"
#include "kernels/cuda/attention/library_attention.h"
#include "kernels/cuda/dynamic_shared.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda_scratch/library_attention.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

template <int kWidth, int kRows, int kKeys>
struct ForwardTiles {
  alignas(16) float q[kRows * padded(kWidth)];
  alignas(16) float k[kKeys * padded(kWidth)];
  alignas(16) float v[kKeys * padded(kWidth)];
  alignas(16) float weights[kRows * padded(kKeys)];
  RowPlaces<kRows> rows;
  int keys[kKeys];
};

// State of a thread's rows: the largest score in units of ln 2, this thread's part of the sum of
// 2^(score - maximum), and its columns of the weighted sum of values.
template <int kWidth, int kRows>
struct SoftmaxRows {
  float maximum[kRows], sum[kRows], out[kRows][thread_columns(kWidth)];
};

// One step of the online softmax: s holds scores, from which the tile's weights are computed. A row
// that has seen no key keeps -infinity.
template <bool kBiased, int kWidth, int kTileRows, int kKeys, int kRows, int kColumns>
__device__ void softmax_step(const AttentionCall& call, const HeadBlock& block, int first_key,
                             bool all, ForwardTiles<kWidth, kTileRows, kKeys>& tiles,
                             float (&s)[kRows][kColumns], SoftmaxRows<kWidth, kRows>& state) {
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
    float sum = state.sum[i];
#pragma unroll
    for (int distance = kAcross / 2; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    const int row = block.first_row + tile_row<kRows>(i);
    if (row >= places.rows()) continue;
    const RowTotal total(state.maximum[i], sum, work.sinks, block.head_of(places.group, row), 1.0f);
    store_columns<kWidth>(out.row(row), out.whole, work.call.value_width, total.factor,
                          state.out[i]);
    if (across() == 0) work.lse[statistics_index(work.call, block, row)] = total.lse;
  }
}

template <class T, int kWidth, int kTileRows, int kKeys, bool kBiased>
__global__ void __launch_bounds__(kTileThreads, kWidth == 64 && kTileRows > kFewRows ? 3 : 2)
    attend(ForwardCall<T> work) {
  constexpr int kRows = kTileRows / kDown, kColumns = kKeys / kAcross;
  using Tiles = ForwardTiles<kWidth, kTileRows, kKeys>;
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic_shared());
  const AttentionCall& call = work.call;
  const Places& places = call.places;
  // Starts with the rows that see the most keys.
  const HeadBlock block(call, places.row_blocks - 1 - call.block(), kTileRows);
  const HeadRows<T> q(work.q, block.sample, block.key_head, places.group);
  const KeyRows<T> k(work.k, work.pages, block.sample, block.key_head);
  const KeyRows<T> v(work.v, work.pages, block.sample, block.key_head);
  load_tile<kTileRows, kWidth>(q, block.first_row, places.rows(), call.width, tiles.q);
  tiles.rows.fill(places, block.sample, block.first_row);
  const RowSpan span = places.row_span(block.sample, block.index);
  const int key_end = places.key_end(block.sample);

  SoftmaxRows<kWidth, kRows> state;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    state.maximum[i] = -INFINITY;
    state.sum[i] = 0;
#pragma unroll
    for (int c = 0; c < thread_columns(kWidth); ++c) state.out[i][c] = 0;
  }
  for (int index = places.first_keys(span); index * kKeys < key_end; ++index) {
    const KeySpan keys = places.key_span(block.sample, index);
    if (!meet(span, keys)) continue;
    const int first_key = index * kKeys;
    __syncthreads();
    load_tile<kKeys, kWidth>(k, first_key, key_end, call.width, tiles.k);
    load_tile<kKeys, kWidth>(v, first_key, key_end, call.value_width, tiles.v);
    fill_keys(places, block.sample, first_key, key_end, tiles.keys);
    __syncthreads();
    float s[kRows][kColumns];
    tile_products<kWidth>(tiles.q, tiles.k, call.width, s);
    const bool all = first_key + kKeys <= key_end && all_seen(span, keys);
    softmax_step<kBiased>(call, block, first_key, all, tiles, s, state);
    __syncwarp();
    add_weighted<kWidth, kKeys>(tiles.weights, tiles.v, state.out);
  }
  store_rows<T>(work, block, state);
}

template <class T, int kWidth, bool few_rows, bool kBiased>
void launch_forward(const ForwardCall<T>& work, const AttentionBlocks& blocks, Stream& stream) {
  constexpr AttentionTile kTile = forward_tile(kWidth, few_rows);
  launch_tiles<ForwardTiles<kWidth, kTile.rows, kTile.others>>(
      "attention", attend<T, kWidth, kTile.rows, kTile.others, kBiased>, work, blocks.row_blocks,
      stream);
}

}  // namespace

// Uses the library if it supports the call (library_attention.h), else this program's kernels: f32,
// bf16 and f16, head width up to kAttentionWidth (an Error above). On tensor cores
// (on_tensor_cores), weights and gradients of scores are rounded to the tensors' type before their
// products, as the library does.
void attention(const AttentionArgs& args, Stream& stream) {
  ask_library_scratch(args, stream);
  const bool done = library_attention(args, stream);
  ++(done ? stream.calls().attention_library : stream.calls().attention_own);
  check_attention_sizes("attention", args.q, args.k, head_width(args), args.keys());
  const AttentionScratch scratch = attention_scratch(args, stream);
  if (done) return;
  if (on_tensor_cores(args)) return tensor_core_attention(args, scratch.spans, stream);
  const AttentionBlocks blocks = forward_blocks(args);
  for_tiles("attention", args, [&](auto type, auto width) {
    using T = decltype(type);
    constexpr int kWidth = decltype(width)::value;
    const auto work = forward_call<T>(args, blocks, scratch.spans, stream);
    for_bias(args, [&](auto biased) {
      blocks.row_tile == kFewRows ? launch_forward<T, kWidth, true, biased>(work, blocks, stream)
                                  : launch_forward<T, kWidth, false, biased>(work, blocks, stream);
    });
  });
}

}  // namespace megatron::kernels::cuda
