// What the bodies of the optimizer's kernels share (elements.h). Sums of two products are written
// as fused ones, so that no compiler chooses which of the products is rounded.
#pragma once

#include "kernels/cuda/elements.h"
#include "tensor/tensor.h"

namespace megatron::kernels::cuda {

inline constexpr int kFour = 4;  // neighbours: an access of f32
using Four = float[kFour];

// f32 or bf16 of what is no parameter.
template <class F>
auto for_moment(const char* kernel, const Tensor& tensor, F&& f) {
  switch (tensor.dtype()) {
    case DType::f32: return f(static_cast<float*>(tensor.address()));
    case DType::bf16: return f(static_cast<Bf16*>(tensor.address()));
    default: refuse_type(kernel, tensor.dtype());
  }
}

// Null: undefined.
inline float* floats(const char* kernel, const Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (tensor.dtype() != DType::f32) refuse_type(kernel, tensor.dtype());
  return static_cast<float*>(tensor.address());
}

inline const double* scalar(const Tensor& tensor) {
  return static_cast<const double*>(tensor.address());
}

// Queues the body for each element of a tensor.
template <class Body>
void run(const char* name, const Tensor& like, const Body& body, Stream& stream) {
  run_over_elements(name, like.elements(), body.is_aligned(), body, stream);
}

inline float rounded(double x) { return static_cast<float>(x); }

}  // namespace megatron::kernels::cuda
