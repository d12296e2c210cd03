// CUDA's rotary position embedding; contract in kernels/rope.h. A position that the table does not
// have gives NaN.
#pragma once

#include "device/stream.h"
#include "kernels/rope.h"

namespace megatron::kernels::cuda {

void rope(const RopeArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
