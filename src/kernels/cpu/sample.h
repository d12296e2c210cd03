// The host's sample; contract in kernels/sample.h.
#pragma once

#include "device/stream.h"
#include "kernels/sample.h"

namespace megatron::kernels::cpu {

void sample(const SampleArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
