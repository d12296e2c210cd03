// CUDA's norms of queries and keys; contracts in kernels/head_norm.h.
#pragma once

#include "device/stream.h"
#include "kernels/head_norm.h"

namespace megatron::kernels::cuda {

void head_norm(const HeadNormArgs& args, Stream& stream);
void head_norm_backward(const HeadNormBackwardArgs& args, Stream& stream);
void row_dot(const RowDotArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
