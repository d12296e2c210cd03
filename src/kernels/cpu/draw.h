// The host's draws; contract in kernels/draw.h.
#pragma once

#include "device/stream.h"
#include "kernels/draw.h"

namespace megatron::kernels::cpu {

void draw(const DrawArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
