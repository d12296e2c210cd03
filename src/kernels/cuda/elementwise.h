// CUDA's sums, copies and reductions; contracts in kernels/elementwise.h.
#pragma once

#include "device/stream.h"
#include "kernels/elementwise.h"

namespace megatron::kernels::cuda {

void add(const AddArgs& args, Stream& stream);
void copy(const CopyArgs& args, Stream& stream);
void fill(const FillArgs& args, Stream& stream);
void column_sum(const ColumnSumArgs& args, Stream& stream);
void sum(const SumArgs& args, Stream& stream);
void sum_of_squares(const SumOfSquaresArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
