// The host's cross entropy; contract in kernels/cross_entropy.h.
#pragma once

#include "device/stream.h"
#include "kernels/cross_entropy.h"

namespace megatron::kernels::cpu {

void cross_entropy(const CrossEntropyArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
