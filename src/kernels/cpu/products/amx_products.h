// The products of kernels/cpu/products/tiles.h for words bf16_amx. The processor must have AVX-512
// as well as AMX.
#pragma once

#include "kernels/cpu/products/tiles.h"

namespace megatron::kernels::cpu {

// Rows of a for which each panel of b is read once.
inline constexpr int64_t kAmxStrip = 32;
// Most words of a row if words are not adjacent (a_step other than 1; a_row is 1): they are
// transposed in stack memory.
inline constexpr int64_t kAmxTurnedWords = 128;

void tile_product_amx(const TileProduct& product);

// While an object lives, the calling thread keeps its tile configuration from one product to the
// next, which is faster if many small products have the same shapes.
class KeepTiles {
 public:
  KeepTiles();
  KeepTiles(const KeepTiles&) = delete;
  ~KeepTiles();
};

}  // namespace megatron::kernels::cpu
