// CUDA's balanced choices of experts; contracts in kernels/expert_balance.h.
#pragma once

#include "device/stream.h"
#include "kernels/expert_balance.h"

namespace megatron::kernels::cuda {

void sinkhorn(const SinkhornArgs& args, Stream& stream);
void expert_thresholds(const ExpertThresholdsArgs& args, Stream& stream);
void threshold_bias(const ThresholdBiasArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
