// CUDA's activations; contracts in kernels/activation.h.
#pragma once

#include "device/stream.h"
#include "kernels/activation.h"

namespace megatron::kernels::cuda {

void activation(const ActivationArgs& args, Stream& stream);
void activation_backward(const ActivationBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
