// CUDA's noise; contracts in kernels/noise.h.
#pragma once

#include "device/stream.h"
#include "kernels/noise.h"

namespace megatron::kernels::cuda {

void jitter(const JitterArgs& args, Stream& stream);
void random_logits(const RandomLogitsArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
