// The host's norms of queries and keys; contracts in kernels/head_norm.h.
#pragma once

#include "device/stream.h"
#include "kernels/cpu/norm.h"
#include "kernels/head_norm.h"

namespace megatron::kernels::cpu {

void head_norm(const HeadNormArgs& args, Stream& stream);
void head_norm_backward(const HeadNormBackwardArgs& args, Stream& stream);
void row_dot(const RowDotArgs& args, Stream& stream);

// Memory that a call takes of the scratch arena.
NormPartials head_norm_backward_scratch(const HeadNormBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
