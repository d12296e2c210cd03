// Column sums in two steps: each fixed block of rows gives a partial row, then the partial rows are
// added.
#pragma once

#include "device/stream.h"
#include "kernels/norm.h"

namespace megatron::kernels::cuda {

// to.out = sum of the partial rows [blocks, width] f32 in a fixed order + to.beta * to.out.
void add_partial_rows(const Tensor& partials, const Accumulate& to, Stream& stream);

}  // namespace megatron::kernels::cuda
