// CUDA's soft_cap; contract in kernels/soft_cap.h.
#pragma once

#include "device/stream.h"
#include "kernels/soft_cap.h"

namespace megatron::kernels::cuda {

void soft_cap(const SoftCapArgs& args, Stream& stream);
void soft_cap_backward(const SoftCapBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
