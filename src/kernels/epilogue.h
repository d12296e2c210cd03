// Epilogues of products as calls of their own.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

// A product with an epilogue for back-ends and calls that have no kernel for it: the product by
// parts.gemm, without one, then the table's activation, activation_backward or column_sum. s is
// rounded to the type of out in between.
void gemm_by_parts(const GemmArgs& args, const Table& parts, Stream& stream);

}  // namespace megatron::kernels
