// Element-wise part of blocked attention: processes a tile of scores between the products.
#pragma once

#include <cstdint>

#include "kernels/cpu/products/tiles.h"

namespace megatron::kernels::cpu {

// A tile has up to kQueryRows rows (queries of the heads that share keys) and kKeyColumns columns
// (keys), with row stride kKeyColumns. 64 x 128 f32 fill two thirds of an L1 cache, with the packed
// operands in L2.
inline constexpr int64_t kQueryRows = 64;
inline constexpr int64_t kKeyColumns = 128;
static_assert(kQueryRows % kChainCut == 0 && kKeyColumns % kChainCut == 0 &&
              kPanel % kChainCut == 0);

// Positions of a tile's rows and columns. A query attends to a key if key_begin[i] <= key[j] <=
// limit[i]. all_seen marks tiles without masked keys.
struct TilePlace {
  int64_t rows;
  int64_t first;  // number of keys of the block before the tile's; a multiple of 32
  int64_t keys;   // a multiple of 32; padding keys have position INT32_MAX and are never seen
  const int32_t* key_begin;  // [rows]; null if no key of the tile is before its begin
  const int32_t* limit;      // [rows]
  const int32_t* key;        // [keys]
  bool all_seen;
};

// Dropout of a tile: elements with word >= threshold are kept and scaled. words
// [rows][kKeyColumns]; null: no dropout.
struct TileDropout {
  const uint32_t* words = nullptr;
  uint32_t threshold = 0;
  float scale = 1;
};

// Random words of one row, for the elements (sample, position, key[j]) of the stream with key
// philox_key (kernels/dropout.h).
void random_row(const int32_t* key, int64_t keys, uint32_t position, uint64_t sample,
                uint64_t philox_key, uint32_t* words);

// One step of the online softmax (Milakov and Gimelshein 2018). With y = scale * s, soft-capped,
// plus the bias, m' = max(m, max y):
//   weights = dropout(e^(y - m')), sum = sum e^(m - m') + sum of e^(y - m'), output *= e^(m - m'),
//   m = m'.
// A row that has seen nothing keeps m = -infinity.
struct SoftmaxStep {
  TilePlace place;
  TileDropout dropout;
  WordKind kind;
  float scale, soft_cap;     // soft_cap 0: none
  const float* const* bias;  // [rows][keys]; null: none
  float* scores;             // input s; with kind f32, also output weights
  uint32_t* weights;         // pairs of bf16: weights, rows of kKeyColumns / 2 words
  float* maximum;            // [rows]
  float* sum;                // [rows]
  float* output;             // [rows][width]
  int64_t width;             // a multiple of 32
};
void softmax_step(const SoftmaxStep& step);

// p = e^(y - lse) with y as above, 0 for masked keys; weights = dropout(p);
// dy = p * (dropout(dp) - delta); ds = scale * dy, times 1 - (c / soft_cap)^2 for c = y less the
// bias.
struct GradientStep {
  TilePlace place;  // an even number of rows
  TileDropout dropout;
  WordKind kind;
  float scale, soft_cap;
  const float* const* bias;     // [rows][keys]; null: none
  float* const* bias_gradient;  // [rows][keys] += dy; null: none
  const float* lse;             // [rows]; +infinity makes p 0
  const float* delta;           // [rows]
  float* scores;                // input s; with kind f32, also output weights
  float* slopes;                // input dp; with kind f32, also output ds
  // For pairs of bf16: ds as pairs of keys [rows][kKeyColumns / 2]; weights and ds as pairs of rows
  // [rows / 2][kKeyColumns].
  uint32_t* slope_pairs;
  uint32_t* weight_row_pairs;
  uint32_t* slope_row_pairs;
};
void gradient_step(const GradientStep& step);

}  // namespace megatron::kernels::cpu
