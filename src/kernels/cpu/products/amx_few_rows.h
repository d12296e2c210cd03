// Products of 9 to 64 rows with a transposed matrix of bf16 in AMX tiles.
#pragma once

#include "kernels/cpu/products/block.h"

namespace megatron::kernels::cpu {

// True if amx_few_rows_block computes the block. A block of so few rows spends its time on reading
// b, which is therefore not packed.
bool takes_amx_few_rows(const Problem& problem, const Block& block);

// The processor must have AMX. Gives the bits of amx_block.
void amx_few_rows_block(const Problem& problem, const Block& block);

}  // namespace megatron::kernels::cpu
