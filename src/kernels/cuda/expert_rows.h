// CUDA's rows of experts; contracts in kernels/expert_rows.h.
#pragma once

#include "device/stream.h"
#include "kernels/expert_rows.h"

namespace megatron::kernels::cuda {

void expert_rows(const ExpertRowsArgs& args, Stream& stream);
void take_rows(const TakeRowsArgs& args, Stream& stream);
void sum_rows(const SumRowsArgs& args, Stream& stream);
void scale_rows(const ScaleRowsArgs& args, Stream& stream);
void scale_rows_backward(const ScaleRowsBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
