// CUDA's clip; contract in kernels/clip.h.
#pragma once

#include "device/stream.h"
#include "kernels/clip.h"

namespace megatron::kernels::cuda {

void clip(const ClipArgs& args, Stream& stream);
void clip_backward(const ClipBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
