// The host's order of rows by experts; contract in kernels/expert_rows.h.
#pragma once

#include "device/stream.h"
#include "kernels/expert_rows.h"

namespace megatron::kernels::cpu {

void expert_rows(const ExpertRowsArgs& args, Stream& stream);
Tensor expert_rows_scratch(const ExpertRowsArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
