// Gradients of attention sinks.
#pragma once

#include "device/stream.h"
#include "kernels/access.h"

namespace megatron::kernels::cuda {

// to[n] -= sum over b, t of exp(sinks[n] - lse) * delta, in a fixed order; lse, delta [B,N,T] f32,
// sinks [N] f32. Does nothing if `to` is undefined.
void sink_gradients(const Tensor& sinks, const Tensor& lse, const Tensor& delta,
                    const Accumulate& to, Stream& stream);

}  // namespace megatron::kernels::cuda
