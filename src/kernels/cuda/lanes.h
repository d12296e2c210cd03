// The scalar operations that formulas (kernels/formulas-inl.h) need, for float.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/exponential.h"

namespace megatron::kernels::cuda {

template <class X>
struct Pair {
  X first, second;
};

__device__ inline float select(bool condition, float yes, float no) { return condition ? yes : no; }
__device__ inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline float one_less(float a, float b) { return fmaf(-a, b, 1.0f); }
__device__ inline float abs(float x) { return fabsf(x); }
__device__ inline float tanh(float x) { return tanhf(x); }
__device__ inline float sigmoid(float x) { return reciprocal_approx(1.0f + exp_approx(-x)); }

}  // namespace megatron::kernels::cuda
