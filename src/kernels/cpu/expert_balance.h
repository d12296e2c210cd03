// The host's balanced choices of experts; contracts in kernels/expert_balance.h.
#pragma once

#include "device/stream.h"
#include "kernels/expert_balance.h"

namespace megatron::kernels::cpu {

void sinkhorn(const SinkhornArgs& args, Stream& stream);
void expert_thresholds(const ExpertThresholdsArgs& args, Stream& stream);
void threshold_bias(const ThresholdBiasArgs& args, Stream& stream);

// K [T,E], then c [E], sums of blocks of rows [blocks,E] and r [T], f64.
Tensor sinkhorn_scratch(const SinkhornArgs& args, Stream& stream);
// s - alpha, [E,T] of the type of logits.
Tensor expert_thresholds_scratch(const ExpertThresholdsArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
