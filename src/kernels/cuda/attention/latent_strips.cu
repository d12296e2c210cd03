// Attention to latents in bf16 and f16 on tensor cores. Weights are rounded for the product with
// values; scores and sums are f32.
#include "kernels/cuda/attention/latent.h"
#include "kernels/cuda/attention/strips.h"
#include "kernels/cuda/dynamic_shared.h"

namespace megatron::kernels::cuda {
namespace {

// 64 rows take 153 KiB and 8 warps of up to 255 registers: one block per multiprocessor, within the
// 163 KiB that compute capability 8.0 allows it. 16 rows take 94 KiB, which every GPU allows, and 4
// warps: two blocks in the 228 KiB of 9.0. A tile of keys is used while the next one is fetched.
template <class T, int kTileRows>
struct LatentStrips {
  static constexpr int kRows = kTileRows, kKeys = latent_tile(true, kRows).others;
  static constexpr int kAllStrips = kRows / kStripRows, kStrips = kAllStrips < 2 ? 1 : 2;
  static constexpr int kThreadCount = 4 * kAllStrips / kStrips * kWarp;
  static constexpr int kHalf = kKeys / 2, kQuarter = kLatentColumns / 4;
  static constexpr int kPitch = strip_pitch(kLatentKeyColumns), kWeightPitch = strip_pitch(kKeys);

  alignas(16) T q[kRows * kPitch];
  alignas(16) T k[2][kKeys * kPitch];
  alignas(16) T weights[kRows * kWeightPitch];
  float highest[2][kRows], sum[2][kRows];  // by halves of the keys
  RowPlaces<kRows> rows;
  alignas(8) int keys[2][kKeys];
};

// A warp's share of a tile: the scores of one strip for half of the keys, or none, and the weighted
// sums of kStrips strips in a quarter of the columns.
template <class Tiles>
struct LatentShare {
  int score_row = warp_of_block() % Tiles::kAllStrips * kStripRows;
  int half = warp_of_block() / Tiles::kAllStrips, first_key = half * Tiles::kHalf;
  int first_row = warp_of_block() / 4 * Tiles::kStrips * kStripRows;
  int column = warp_of_block() % 4 * Tiles::kQuarter;

  __device__ bool has_scores() const { return half < 2; }
};

// Largest scores in units of ln 2, and this lane's parts of the sums of weights and of values.
template <class Tiles>
struct LatentState {
  float score_maximum[2] = {-INFINITY, -INFINITY}, score_sum[2] = {0, 0};  // of the scores' strip
  float maximum[Tiles::kStrips][2];                                        // of the sums' strips
  float out[Tiles::kStrips][Tiles::kQuarter / 8][4];

  __device__ LatentState() {
#pragma unroll
    for (int i = 0; i < Tiles::kStrips; ++i) {
      for (int h = 0; h < 2; ++h) maximum[i][h] = -INFINITY;
#pragma unroll
      for (int c = 0; c < Tiles::kQuarter / 8; ++c)
        for (int n = 0; n < 4; ++n) out[i][c][n] = 0;
    }
  }
};

// Computes a warp's scores, and the largest of each row.
template <class Tiles>
__device__ void score_keys(const AttentionCall& call, bool all, Tiles& tiles, int stage,
                           const LatentShare<Tiles>& share, float (&s)[1][2][4]) {
  strip_products<kLatentKeyColumns>(tiles.q + share.score_row * Tiles::kPitch,
                                    tiles.k[stage] + share.first_key * Tiles::kPitch, s);
  if (call.soft_cap.active()) {
#pragma unroll
    for (int j = 0; j < 2; ++j) call.soft_cap.cap(s[0][j]);
  }
  const int row = share.score_row + strip_row();
  mask_strip(call.scale, all, tiles.rows, row, tiles.keys[stage] + share.first_key, s[0]);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float highest = strip_max(fmaxf(fmaxf(s[0][0][2 * h], s[0][0][2 * h + 1]),
                                          fmaxf(s[0][1][2 * h], s[0][1][2 * h + 1])));
    if (strip_pair() == 0) tiles.highest[share.half][row + 8 * h] = highest;
  }
}

// Updates the largest score of a row. Returns that which the tile's scores are relative to; a row
// that has seen no key keeps -infinity. fade: factor of earlier weights.
template <class Tiles>
__device__ float raise(const Tiles& tiles, int row, float& maximum, float& fade) {
  const float highest = fmaxf(maximum, fmaxf(tiles.highest[0][row], tiles.highest[1][row]));
  const float base = highest == -INFINITY ? 0.0f : highest;
  fade = exp2f(maximum - base);
  maximum = highest;
  return base;
}

// Replaces a warp's scores by weights, in shared memory.
template <class T, int kTileRows>
__device__ void weigh_keys(LatentStrips<T, kTileRows>& tiles,
                           const LatentShare<LatentStrips<T, kTileRows>>& share,
                           float (&s)[1][2][4], LatentState<LatentStrips<T, kTileRows>>& state) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = share.score_row + strip_row() + 8 * h;
    float fade = 0, sum = 0;
    const float base = raise(tiles, row, state.score_maximum[h], fade);
    T* to = tiles.weights + row * tiles.kWeightPitch + share.first_key + 2 * strip_pair();
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float low = exp2f(s[0][j][2 * h] - base), high = exp2f(s[0][j][2 * h + 1] - base);
      sum += low;
      sum += high;
      store_vector<T, 2>(to + 8 * j, {{from_float<T>(low), from_float<T>(high)}});
    }
    state.score_sum[h] = fmaf(state.score_sum[h], fade, sum);
  }
}

// Adds the tile's weighted values to a warp's sums.
template <class T, int kTileRows>
__device__ void add_values(const LatentStrips<T, kTileRows>& tiles, int stage,
                           const LatentShare<LatentStrips<T, kTileRows>>& share,
                           LatentState<LatentStrips<T, kTileRows>>& state) {
  using Tiles = LatentStrips<T, kTileRows>;
#pragma unroll
  for (int i = 0; i < Tiles::kStrips; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float fade = 0;
      raise(tiles, share.first_row + i * kStripRows + strip_row() + 8 * h, state.maximum[i][h],
            fade);
#pragma unroll
      for (int c = 0; c < Tiles::kQuarter / 8; ++c) {
        state.out[i][c][2 * h] *= fade;
        state.out[i][c][2 * h + 1] *= fade;
      }
    }
  }
  const int lane = lane_of_warp();
  const T* weights =
      tiles.weights + (share.first_row + lane % 16) * Tiles::kWeightPitch + lane / 16 * 8;
  const T* values = tiles.k[stage] + lane % 16 * Tiles::kPitch + lane / 16 * 8 + share.column;
#pragma unroll
  for (int j = 0; j < Tiles::kKeys; j += 16) {
    Matrices x[Tiles::kStrips];
#pragma unroll
    for (int i = 0; i < Tiles::kStrips; ++i)
      x[i] = load_matrices(weights + i * kStripRows * Tiles::kWeightPitch + j);
#pragma unroll
    for (int d = 0; d < Tiles::kQuarter; d += 16) {
      const Matrices y = load_transposed(values + j * Tiles::kPitch + d);
#pragma unroll
      for (int i = 0; i < Tiles::kStrips; ++i) {
        multiply_add<T>(x[i], y.at[0], y.at[1], state.out[i][d / 8]);
        multiply_add<T>(x[i], y.at[2], y.at[3], state.out[i][d / 8 + 1]);
      }
    }
  }
}

// Stores a warp's results, or those of one range of keys. The block no longer needs its keys.
template <class T, int kTileRows>
__device__ void store_latents(const LatentCall<T>& work, const HeadBlock& block,
                              LatentStrips<T, kTileRows>& tiles,
                              const LatentShare<LatentStrips<T, kTileRows>>& share,
                              LatentState<LatentStrips<T, kTileRows>>& state) {
  using Tiles = LatentStrips<T, kTileRows>;
  const ForwardCall<T>& f = work.forward;
  const Places& places = f.call.places;
  const bool first = share.column == 0 && strip_pair() == 0;
#pragma unroll
  for (int i = 0; i < Tiles::kStrips; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int in_tile = share.first_row + i * kStripRows + strip_row() + 8 * h;
      const float sum = tiles.sum[0][in_tile] + tiles.sum[1][in_tile];
      if (work.sums != nullptr) {
        float* to = part_sums(work, in_tile) + share.column + 2 * strip_pair();
#pragma unroll
        for (int c = 0; c < Tiles::kQuarter / 8; ++c)
          store_vector<float, 2>(to + 8 * c,
                                 {{state.out[i][c][2 * h], state.out[i][c][2 * h + 1]}});
        if (first) store_weights(work, in_tile, state.maximum[i][h], sum);
        continue;
      }
      const int row = block.first_row + in_tile;
      const RowTotal total(state.maximum[i][h], sum, f.sinks, block.head_of(places.group, row),
                           1.0f);
#pragma unroll
      for (int c = 0; c < Tiles::kQuarter / 8; ++c) {
        state.out[i][c][2 * h] *= total.factor;
        state.out[i][c][2 * h + 1] *= total.factor;
      }
      if (first && row < places.rows()) f.lse[statistics_index(f.call, block, row)] = total.lse;
    }
  }
  if (work.sums != nullptr) return;
  HeadRows<T> out(f.out, block.sample, 0, places.group);
  out.data += share.column;
  T* staging =
      tiles.k[0] + warp_of_block() * Tiles::kStrips * kStripRows * strip_pitch(Tiles::kQuarter);
  store_strips<Tiles::kQuarter>(out, block.first_row + share.first_row, places.rows(),
                                f.call.value_width - share.column, state.out, staging);
}

template <class T, int kTileRows>
__global__ void __launch_bounds__(LatentStrips<T, kTileRows>::kThreadCount,
                                  kTileRows == kStripRows ? 2 : 1)
    attend_latent_strips(LatentCall<T> work) {
  using Tiles = LatentStrips<T, kTileRows>;
  constexpr int kKeys = Tiles::kKeys;
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic_shared());
  const AttentionCall& call = work.forward.call;
  const Places& places = call.places;
  const LatentPart<T> part(work);
  if (is_empty(work, part)) return;
  const HeadBlock& block = part.block;
  const auto fetch = [&](int index, int stage) {
    const int first_key = index * kKeys;
    fetch_tile<kKeys, kLatentKeyColumns, Tiles::kThreadCount>(latent_rows(work, part, first_key), 0,
                                                              part.key_end - first_key, call.width,
                                                              tiles.k[stage]);
    fill_keys(places, block.sample, first_key, part.key_end, tiles.keys[stage]);
  };
  const HeadRows<T> q(work.forward.q, block.sample, 0, places.group);
  fetch_tile<kTileRows, kLatentKeyColumns, Tiles::kThreadCount>(q, block.first_row, places.rows(),
                                                                call.width, tiles.q);
  tiles.rows.fill(places, block.sample, block.first_row);
  int index = part.first;
  if (index < places.key_blocks) fetch(index, 0);
  const LatentShare<Tiles> share;
  LatentState<Tiles> state;
  wait_for_copies();
  __syncthreads();
  for (int stage = 0; index < places.key_blocks; stage ^= 1) {
    const int next = part.next(places, index + 1);
    if (next < places.key_blocks) fetch(next, stage ^ 1);
    float s[1][2][4];
    if (share.has_scores()) score_keys(call, part.all_see(places, index), tiles, stage, share, s);
    __syncthreads();
    if (share.has_scores()) weigh_keys(tiles, share, s, state);
    __syncthreads();
    add_values(tiles, stage, share, state);
    wait_for_copies();
    __syncthreads();
    index = next;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = strip_sum(state.score_sum[h]);
    if (share.has_scores() && strip_pair() == 0)
      tiles.sum[share.half][share.score_row + strip_row() + 8 * h] = sum;
  }
  __syncthreads();
  store_latents(work, block, tiles, share, state);
}

template <class T, int kTileRows>
void launch_strips(const AttentionArgs& args, const AttentionScratch& scratch, Stream& stream) {
  using Tiles = LatentStrips<T, kTileRows>;
  launch_latents<Tiles>(attend_latent_strips<T, kTileRows>, args, scratch, Tiles::kThreadCount,
                        stream);
}

}  // namespace

void latent_attention(const AttentionArgs& args, const AttentionScratch& scratch, Stream& stream) {
  if (args.q.dtype() == DType::f32) return latent_attention_f32(args, scratch, stream);
  if (args.q.dtype() == DType::f64) refuse_type("attention", args.q.dtype());
  for_half_type(args.q.dtype(), [&](auto type) {
    using T = decltype(type);
    forward_blocks(args).row_tile == kStripRows
        ? launch_strips<T, kStripRows>(args, scratch, stream)
        : launch_strips<T, 64>(args, scratch, stream);
  });
}

}  // namespace megatron::kernels::cuda
