// Several matrix products at once.
#pragma once

#include <span>

#include "kernels/gemm.h"
#include "kernels/table.h"

namespace megatron::kernels {

// Calls the table's gemm for each of the products, none of which may read or write what another one
// writes. On a CPU, if each has at most 64 rows, the threads share all of them and synchronize only
// once, since such products are shorter than a synchronization. Gives the bits of separate calls.
void gemm_each(std::span<const GemmArgs> calls, const Table& table, Stream& stream);

}  // namespace megatron::kernels
