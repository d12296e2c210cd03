// What a chunk adds to the state after it, and to the gradient of the state before it, for a tile
// of that state.
#pragma once

#include "kernels/cuda/dynamic_shared.h"
#include "kernels/cuda/state_scan/call.h"

namespace megatron::kernels::cuda {

template <class T>
struct ChunkStateTiles {
  ScanTile<T> left, right;
  ScanToken tokens[kSide];
};

// The tile, chunk and head of a block of threads.
struct ChunkStateTile {
  template <class T>
  __device__ ChunkStateTile(const ScanCall<T>& call, int chunks) {
    const int tiles = call.width_tiles * call.state_tiles;
    int64_t index = blockIdx.x;
    const int tile = static_cast<int>(index % tiles);
    index /= tiles;
    first_row = tile / call.state_tiles * kSide;
    first_column = tile % call.state_tiles * kSide;
    chunk = static_cast<int>(index % chunks);
    index /= chunks;
    head = static_cast<int>(index % call.heads);
    sequence = index / call.heads;
  }
  int first_row, first_column, chunk, head;
  int64_t sequence;
};

// Numbers of a chunk's tokens in a head, in shared memory. All threads of a block call this.
template <class T>
__device__ void load_tokens(const ScanCall<T>& call, int64_t sequence, int chunk, int head,
                            ScanToken* tokens) {
  if (threadIdx.x < kSide) tokens[threadIdx.x] = call.tokens_of(sequence, chunk, head)[threadIdx.x];
}

__device__ inline float next_state(float state, float decay, float added) {
  return decay == 0 ? added : fmaf(decay, state, added);
}

// Sum over the tokens j of a complete chunk, with its last token l, of L_lj D_j x_j b_j^T.
template <class T>
__device__ void add_inputs(const ScanCall<T>& call, const ScanText& text, const ChunkStateTile& at,
                           int chunk, ChunkStateTiles<T>& tiles, ScanSums<T>& sums) {
  load_tokens(call, at.sequence, chunk, at.head, tiles.tokens);
  __syncthreads();
  const ScanToken* tokens = tiles.tokens;
  fill_tile(
      tiles.left, call.x_rows(text, at.sequence, chunk, at.head), 0, at.first_row,
      [&](int j) { return decay_of_input(tokens[kSide - 1], tokens[j], j) * tokens[j].step; });
  fill_tile(tiles.right, call.b_rows(text, at.sequence, chunk, at.head / call.group_heads()), 0,
            at.first_column);
  __syncthreads();
  sums.template add_product<Depth::outside, Depth::outside>(tiles.left, tiles.right);
}

// Sum over the tokens i of a chunk of E_i dy_i c_i^T.
template <class T>
__device__ void add_outputs(const ScanCall<T>& call, const ScanText& text, const ChunkStateTile& at,
                            int chunk, ChunkStateTiles<T>& tiles, ScanSums<T>& sums) {
  load_tokens(call, at.sequence, chunk, at.head, tiles.tokens);
  __syncthreads();
  const ScanToken* tokens = tiles.tokens;
  fill_tile(tiles.left, call.y_rows(text, at.sequence, chunk, at.head), 0, at.first_row,
            [&](int i) { return decay_of_state(tokens[i]); });
  fill_tile(tiles.right, call.c_rows(text, at.sequence, chunk, at.head / call.group_heads()), 0,
            at.first_column);
  __syncthreads();
  sums.template add_product<Depth::outside, Depth::outside>(tiles.left, tiles.right);
}

}  // namespace megatron::kernels::cuda
