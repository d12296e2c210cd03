// e^x and 1/x by the GPU's approximate instructions. They cost a fraction of expf and of a
// division, for kernels that would otherwise be bound by arithmetic instead of memory.
#pragma once

#include <cuda_runtime.h>

namespace megatron::kernels::cuda {

// Relative error at most (|x| + 4) 2^-23; in a softmax, larger terms are thus more accurate.
// Returns 0 if e^x is not a normal number.
__device__ inline float exp_approx(float x) {
  const float y = x * 1.44269504f;
#ifdef __CUDA_ARCH__
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(y));
  return e;
#else
  return exp2f(y);
#endif
}

// Within 2 units of the last place; 0 from 2^126 on.
__device__ inline float reciprocal_approx(float x) {
#ifdef __CUDA_ARCH__
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
#else
  return 1.0f / x;
#endif
}

}  // namespace megatron::kernels::cuda
