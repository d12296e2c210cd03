// The host's scale; contract in kernels/scale.h.
#pragma once

#include "device/stream.h"
#include "kernels/scale.h"

namespace megatron::kernels::cpu {

void scale(const ScaleArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
