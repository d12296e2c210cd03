// Scratch memory of CUDA's balanced choices of experts. It is requested by the kernels, and by meta
// when a run is planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/expert_balance.h"

namespace megatron::kernels::cuda {

// K [T,E], then c [E] and r [T], f64.
Tensor sinkhorn_scratch(const SinkhornArgs& args, Stream& stream);
// s - alpha, [E,T] of the type of logits.
Tensor expert_thresholds_scratch(const ExpertThresholdsArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
