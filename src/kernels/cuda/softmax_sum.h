// Running maximum of a row and the sum of exp(value - maximum), in one pass over the row.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/exponential.h"
#include "kernels/cuda/reduce.h"

namespace megatron::kernels::cuda {

struct SoftmaxSum {
  float most = -INFINITY, sum = 0;

  // The number subtracted from all values; finite even if all of them are -infinity.
  __device__ static float shift(float most) { return most == -INFINITY ? 0.0f : most; }

  template <int N>
  __device__ void add(const float (&values)[N]) {
    float top = most;
#pragma unroll
    for (int j = 0; j < N; ++j) top = fmaxf(top, values[j]);
    const float by = shift(top);
    float terms = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) terms += exp_approx(values[j] - by);
    sum = (top > most ? sum * exp_approx(most - by) : sum) + terms;
    most = top;
  }
  // The sum relative to a row maximum `top`.
  __device__ float scaled_to(float top) const { return sum * exp_approx(most - shift(top)); }
};

__device__ inline SoftmaxSum block_merge(SoftmaxSum mine, float* partial) {
  const float top = block_max(mine.most, partial);
  return {top, block_sum(mine.scaled_to(top), partial)};
}

}  // namespace megatron::kernels::cuda
