// Attention to latents in f32, by f32 multiplications and additions.
#include "kernels/cuda/attention/forward_tiles.h"
#include "kernels/cuda/attention/latent.h"
#include "kernels/cuda/dynamic_shared.h"

namespace megatron::kernels::cuda {
namespace {

// 111 KiB: two blocks fit the 228 KiB of compute capability 9.0, one the 164 of 8.0.
struct LatentTiles {
  static constexpr AttentionTile kTile = latent_tile(false, 0);
  static constexpr int kRows = kTile.rows, kKeys = kTile.others;

  alignas(16) float q[kRows * padded(kLatentKeyColumns)];
  alignas(16) float k[kKeys * padded(kLatentKeyColumns)];
  alignas(16) float weights[kRows * padded(kKeys)];
  RowPlaces<kRows> rows;
  int keys[kKeys];
};

template <int kRows>
__device__ void store_part(const LatentCall<float>& work,
                           const SoftmaxRows<kLatentColumns, kRows>& state) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = tile_row<kRows>(i);
    store_columns<kLatentColumns>(part_sums(work, row), true, kLatentColumns, 1.0f, state.out[i]);
    const float sum = state.whole_sum(i);
    if (across() == 0) store_weights(work, row, state.maximum[i], sum);
  }
}

__global__ void __launch_bounds__(kTileThreads, 2) attend_latents(LatentCall<float> work) {
  constexpr int kKeys = LatentTiles::kKeys, kRows = LatentTiles::kRows / kDown;
  LatentTiles& tiles = *reinterpret_cast<LatentTiles*>(dynamic_shared());
  const AttentionCall& call = work.forward.call;
  const Places& places = call.places;
  const LatentPart<float> part(work);
  if (is_empty(work, part)) return;
  const HeadBlock& block = part.block;
  const HeadRows<float> q(work.forward.q, block.sample, 0, places.group);
  load_tile<LatentTiles::kRows, kLatentKeyColumns>(q, block.first_row, places.rows(), call.width,
                                                   tiles.q);
  tiles.rows.fill(places, block.sample, block.first_row);

  SoftmaxRows<kLatentColumns, kRows> state;
  state.clear();
  for (int index = part.first; index < places.key_blocks; index = part.next(places, index + 1)) {
    const int first_key = index * kKeys;
    __syncthreads();
    load_tile<kKeys, kLatentKeyColumns>(latent_rows(work, part, first_key), 0,
                                        part.key_end - first_key, call.width, tiles.k);
    fill_keys(places, block.sample, first_key, part.key_end, tiles.keys);
    __syncthreads();
    float s[kRows][kKeys / kAcross];
    tile_products<kLatentKeyColumns>(tiles.q, tiles.k, call.width, s);
    softmax_step<false>(call, block, first_key, part.all_see(places, index), tiles, s, state);
    __syncwarp();
    add_weighted<kLatentColumns, kKeys, padded(kLatentKeyColumns)>(tiles.weights, tiles.k,
                                                                   state.out);
  }
  work.sums == nullptr ? store_rows(work.forward, block, state) : store_part(work, state);
}

}  // namespace

void latent_attention_f32(const AttentionArgs& args, const AttentionScratch& scratch,
                          Stream& stream) {
  launch_latents<LatentTiles>(attend_latents, args, scratch, kTileThreads, stream);
}

}  // namespace megatron::kernels::cuda
