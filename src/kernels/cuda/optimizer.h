// CUDA's optimizer steps; contracts in kernels/optimizer.h.
#pragma once

#include "device/stream.h"
#include "kernels/optimizer.h"

namespace megatron::kernels::cuda {

void grad_scale(const GradScaleArgs& args, Stream& stream);
void adam(const AdamArgs& args, Stream& stream);
void sgd(const SgdArgs& args, Stream& stream);
void lion(const LionArgs& args, Stream& stream);
void muon_momentum(const MuonMomentumArgs& args, Stream& stream);
void unit_norm(const UnitNormArgs& args, Stream& stream);
void weighted_sum(const WeightedSumArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
