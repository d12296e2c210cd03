// CUDA's gate; contract in kernels/gate.h.
#pragma once

#include "device/stream.h"
#include "kernels/gate.h"

namespace megatron::kernels::cuda {

void gate(const GateArgs& args, Stream& stream);
void gate_backward(const GateBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
