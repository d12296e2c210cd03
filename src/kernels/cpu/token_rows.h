// The host's rows of tokens, taken, added and scaled; contracts in kernels/expert_rows.h.
#pragma once

#include "device/stream.h"
#include "kernels/expert_rows.h"

namespace megatron::kernels::cpu {

void take_rows(const TakeRowsArgs& args, Stream& stream);
void sum_rows(const SumRowsArgs& args, Stream& stream);
void scale_rows(const ScaleRowsArgs& args, Stream& stream);
void scale_rows_backward(const ScaleRowsBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
