// The products of kernels/cpu/products/tiles.h and few_rows.h of words bf16_amx. The processor
// needs AVX-512 besides AMX.
#pragma once

#include "kernels/cpu/products/few_rows.h"
#include "kernels/cpu/products/tiles.h"

namespace megatron::kernels::cpu {

// Rows of a for which each panel of b is read once.
inline constexpr int64_t kAmxStrip = 32;
// Words of a row whose words do not lie side by side (a_step other than 1; a_row is 1), at most:
// they are turned in memory of the stack.
inline constexpr int64_t kAmxTurnedWords = 128;

void tile_product_amx(const TileProduct& product);
void few_rows_product_nt_amx(const FewRowsProduct& product);
void few_rows_product_nn_amx(const FewRowsProduct& product);

}  // namespace megatron::kernels::cpu
