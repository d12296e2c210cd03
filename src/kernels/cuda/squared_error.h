// CUDA's squared_error; contract in kernels/squared_error.h.
#pragma once

#include "device/stream.h"
#include "kernels/squared_error.h"

namespace megatron::kernels::cuda {

void squared_error(const SquaredErrorArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
