// Soft caps of attention scores in registers.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

namespace megatron::kernels::cuda {

// Caps products of queries and keys before they are scaled, so that the rest of a kernel treats
// capped and uncapped products alike: c = (cap / scale) tanh(product scale / cap).
struct SoftCap {
  float inwards = 0, outwards = 0;

  static SoftCap of(double soft_cap, double scale) {
    if (soft_cap == 0 || scale == 0) return {};
    return {static_cast<float>(scale / soft_cap), static_cast<float>(soft_cap / scale)};
  }
  __device__ bool active() const { return outwards != 0; }
  __device__ float capped(float product) const { return outwards * tanhf(product * inwards); }
  // Derivative of a capped product by the product.
  __device__ float slope(float capped) const {
    const float t = capped * inwards;
    return fmaf(-t, t, 1.0f);
  }
  template <int N>
  __device__ void cap(float (&products)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) products[n] = capped(products[n]);
  }
};

}  // namespace megatron::kernels::cuda
