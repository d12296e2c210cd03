// The host's cross entropy; contract in kernels/cross_entropy.h.
#pragma once

#include "device/stream.h"
#include "kernels/cross_entropy.h"

namespace megatron::kernels::cpu {

void cross_entropy(const CrossEntropyArgs& args, Stream& stream);
// What a call of it takes of the scratch arena: f32 gradients hold the exponentials until they are
// scaled, others have a row of each thread.
Tensor cross_entropy_scratch(const CrossEntropyArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
