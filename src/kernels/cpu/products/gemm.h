// The host's matrix product; contract in kernels/gemm.h.
#pragma once

#include "device/stream.h"
#include "kernels/gemm.h"

namespace megatron::kernels::cpu {

void gemm(const GemmArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
