// Blocks of bf16 products of more than a few rows in AMX tiles.
#pragma once

#include "kernels/cpu/products/amx_pack.h"
#include "kernels/cpu/products/block.h"
#include "kernels/cpu/products/block_size.h"

namespace megatron::kernels::cpu {

// Most words of k for which columns of b are packed at a time (590 KB of the L2 cache), and of
// those most for which a strip of a is packed and multiplied at a time (32 KB of the L1 cache).
inline constexpr int64_t kAmxDepth = 384, kAmxSlice = 256;
// Words from one packed panel to the next: padded by a cache line, since addresses a multiple of
// 4 KB apart map to the same cache sets.
inline constexpr int64_t kAmxPanelWords = kAmxDepth * kPanel + 16;

// Bytes of a thread's buffers for packed rows, packed columns and sums.
inline constexpr int64_t kAmxRowBytes = kAmxSlice / 16 * kAmxStepWords * 4,
                         kAmxColumnBytes = kAmxColumns / kPanel * kAmxPanelWords * 4,
                         kAmxSumBytes = kAmxRows * (kAmxColumns + 16) * 4;

// Computes a block of at most kAmxRows rows and kAmxColumns columns. The processor must have AMX
// (kernels/cpu/products/bf16_products.h).
void amx_block(const Problem& problem, const Block& block);

}  // namespace megatron::kernels::cpu
