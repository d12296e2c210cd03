#pragma once

#include <span>

#include "device/stream.h"
#include "kernels/gemm.h"

namespace megatron::kernels::cpu {

// The products of kernels/gemm_each.h, without epilogues.
void gemm_each(std::span<const GemmArgs> calls, Stream& stream);

}  // namespace megatron::kernels::cpu
