// CUDA's halves of the composed attention; contracts in kernels/attention.h.
#pragma once

#include "device/stream.h"
#include "kernels/attention.h"

namespace megatron::kernels::cuda {

void softmax(const SoftmaxArgs& args, Stream& stream);
void softmax_backward(const SoftmaxBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
