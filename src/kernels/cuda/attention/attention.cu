// Attention in f32, and with wide heads in bf16 and f16, by f32 multiplications and additions.
#include "kernels/cuda/attention/forward_tiles.h"
#include "kernels/cuda/attention/latent.h"
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
  state.clear();
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
  store_rows(work, block, state);
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
// bf16 and f16, head width up to kAttentionWidth, or latents in pages (an Error above). On tensor
// cores (on_tensor_cores), weights and gradients of scores are rounded to the tensors' type before
// their products, as the library does.
void attention(const AttentionArgs& args, Stream& stream) {
  ask_library_scratch(args, stream);
  const bool done = library_attention(args, stream);
  ++(done ? stream.calls().attention_library : stream.calls().attention_own);
  check_attention_sizes("attention", args);
  const AttentionScratch scratch = attention_scratch(args, stream);
  if (done) return;
  if (is_latent(args)) return latent_attention(args, scratch, stream);
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
