// Epilogues of products as separate calls.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

// Computes a product with an epilogue for back-ends and calls without a fused kernel: the plain
// product by parts.gemm, then the table's activation, activation_backward or column_sum. s is
// rounded to the type of out in between.
void gemm_by_parts(const GemmArgs& args, const Table& parts, Stream& stream);

// Its two halves: the tensor that the plain product is written to, and the calls after it.
const Tensor& sums_of(const GemmArgs& args);
void finish_gemm(const GemmArgs& args, const Table& parts, Stream& stream);

}  // namespace megatron::kernels
