// The host's matrix product; contract in kernels/gemm.h.
#pragma once

#include "device/stream.h"
#include "kernels/cpu/bf16_products.h"
#include "kernels/gemm.h"

namespace megatron::kernels::cpu {

void gemm(const GemmArgs& args, Stream& stream);

// The call above asks the processor; this one lets the tests take every way, without an epilogue.
void gemm(const GemmArgs& args, Stream& stream, Bf16Products products);

}  // namespace megatron::kernels::cpu
