// CUDA's dropout; contract in kernels/dropout.h.
#pragma once

#include "device/stream.h"
#include "kernels/dropout.h"

namespace megatron::kernels::cuda {

void dropout(const DropoutArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
