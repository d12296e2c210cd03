// CUDA's scale; contract in kernels/scale.h.
#pragma once

#include "device/stream.h"
#include "kernels/scale.h"

namespace megatron::kernels::cuda {

void scale(const ScaleArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
