// CUDA's norms; contracts in kernels/norm.h.
#pragma once

#include "device/stream.h"
#include "kernels/norm.h"

namespace megatron::kernels::cuda {

void add_rms_norm(const AddNormArgs& args, Stream& stream);
void add_rms_norm_backward(const AddNormBackwardArgs& args, Stream& stream);
void add_layer_norm(const AddNormArgs& args, Stream& stream);
void add_layer_norm_backward(const AddNormBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
