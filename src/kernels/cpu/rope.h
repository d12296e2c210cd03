// The host's rotary embedding; contract in kernels/rope.h.
#pragma once

#include "device/stream.h"
#include "kernels/rope.h"

namespace megatron::kernels::cpu {

void rope(const RopeArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
