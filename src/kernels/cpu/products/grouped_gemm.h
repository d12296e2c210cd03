// The host's products of groups of rows; contract in kernels/grouped_gemm.h.
#pragma once

#include "device/stream.h"
#include "kernels/grouped_gemm.h"

namespace megatron::kernels::cpu {

void grouped_gemm(const GroupedGemmArgs& args, Stream& stream);
void grouped_gradient(const GroupedGradientArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
