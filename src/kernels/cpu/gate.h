// The host's gate; contract in kernels/gate.h.
#pragma once

#include "device/stream.h"
#include "kernels/gate.h"

namespace megatron::kernels::cpu {

void gate(const GateArgs& args, Stream& stream);
void gate_backward(const GateBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
