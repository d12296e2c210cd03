// Scratch memory of CUDA's softmax_backward: asked for by the kernel, and by meta when a run is
// planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/attention.h"

namespace megatron::kernels::cuda {

// Of dsinks: f32 [B,N,T], the sums of p dp; undefined without.
inline Tensor softmax_backward_scratch(const SoftmaxBackwardArgs& args, Stream& stream) {
  if (!args.dsinks.out.defined()) return {};
  const Shape shape = {args.p.size(0), args.p.size(1), args.p.size(2)};
  return Tensor::empty(stream.scratch(), shape, DType::f32, "softmax delta");
}

}  // namespace megatron::kernels::cuda
