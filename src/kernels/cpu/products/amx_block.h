// Blocks of bf16 products of more than a few rows in AMX tiles.
#pragma once

#include "kernels/cpu/products/amx_pack.h"
#include "kernels/cpu/products/block.h"
#include "kernels/cpu/products/block_size.h"

namespace megatron::kernels::cpu {

// Most words of k for which columns of b are packed at a time, and of those most that a strip of a
// is packed and multiplied for at a time.
inline constexpr int64_t kAmxDepth = 512, kAmxSlice = 256;
// Words from one packed panel to the next: padded by a cache line, since addresses a multiple of
// 4 KB apart map to the same cache sets.
inline constexpr int64_t kAmxPanelWords = kAmxDepth * kPanel + 16;

// Largest block of a sum over `elements`.
BlockSize largest_amx_block(int64_t elements);

// Bytes of the thread's buffers for packed rows and columns, and for sums.
inline constexpr int64_t kAmxRowBytes = kAmxSlice / 16 * kAmxStepWords * 4;
int64_t amx_column_bytes();
int64_t amx_sum_bytes();

// Computes the block. The processor must have AMX (kernels/cpu/products/bf16_products.h).
void amx_block(const Problem& problem, const Block& block);

}  // namespace megatron::kernels::cpu
