// Several matrix products at once.
#pragma once

#include <span>

#include "kernels/gemm.h"
#include "kernels/table.h"

namespace megatron::kernels {

// Calls the table's gemm for each of the products, none of which reads or writes what another one
// writes. On a CPU, if each has at most 64 rows, threads share all of them and meet once: such
// products take less time than threads that wait for each other. Gives the bits of single calls.
void gemm_each(std::span<const GemmArgs> calls, const Table& table, Stream& stream);

}  // namespace megatron::kernels
