// Common parts of the bodies (elements.h) of the optimizer's kernels. Sums of two products are
// written with explicit fma, so that the compiler does not choose which product is rounded.
#pragma once

#include "kernels/cuda/elements.h"
#include "kernels/moment_codes.h"
#include "tensor/tensor.h"

namespace megatron::kernels::cuda {

inline constexpr int kFour = 4;  // adjacent elements: one access of f32
using Four = float[kFour];

// A code of moment_codes.h, read and written as a number from 0 to 255.
struct MomentCode {
  uint8_t code;
};
__device__ inline float to_float(MomentCode x) { return x.code; }
template <>
__device__ inline MomentCode from_float<MomentCode>(float x) {
  return {static_cast<uint8_t>(x)};
}

// Calls f with the type of an operand of Muon, or of a moment: f32 or bf16.
template <class F>
auto for_moment(const char* kernel, const Tensor& tensor, F&& f) {
  switch (tensor.dtype()) {
    case DType::f32: return f(static_cast<float*>(tensor.address()));
    case DType::bf16: return f(static_cast<Bf16*>(tensor.address()));
    default: refuse_type(kernel, tensor.dtype());
  }
}

// Address of an f32 tensor; null if it is undefined.
inline float* floats(const char* kernel, const Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (tensor.dtype() != DType::f32) refuse_type(kernel, tensor.dtype());
  return static_cast<float*>(tensor.address());
}

inline const double* scalar(const Tensor& tensor) {
  return static_cast<const double*>(tensor.address());
}

// Launches the body for each element of a tensor.
template <class Body>
void run(const char* name, const Tensor& like, const Body& body, Stream& stream) {
  run_over_elements(name, like.elements(), body.is_aligned(), body, stream);
}

inline float rounded(double x) { return static_cast<float>(x); }

}  // namespace megatron::kernels::cuda
