// The host's matrix product; contract in kernels/gemm.h.
#pragma once

#include "device/stream.h"
#include "kernels/cpu/matmul.h"
#include "kernels/gemm.h"

namespace megatron::kernels::cpu {

void gemm(const GemmArgs& args, Stream& stream);

// Who computes a b and a^T b, the forms of gradients: our panels, or oneDNN (bf16 on a processor
// with AMX, whose tiles the panels do not use). Panels have one order of sums for an element,
// whatever the shape, and ask the heap for nothing after a thread's first product.
enum class GradientProducts { panels, library };

// The call above asks the processor; this one lets the tests take every way, without an epilogue.
void gemm(const GemmArgs& args, Stream& stream, Bf16Products products,
          GradientProducts gradients = GradientProducts::panels);

}  // namespace megatron::kernels::cpu
