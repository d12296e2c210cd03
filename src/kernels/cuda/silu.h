// Sigmoid and silu by the GPU's approximate instructions.
#pragma once

#include "kernels/cuda/exponential.h"

namespace megatron::kernels::cuda {

// Value and derivative of an activation at x.
struct Slope {
  float value, derivative;
};

// sigmoid(-x)
__device__ inline float sigmoid_of_minus(float x) {
  return reciprocal_approx(1.0f + exp_approx(x));
}

// x sigmoid(x).
struct Silu {
  __device__ static float value(float x) { return x * sigmoid_of_minus(-x); }
  __device__ static Slope slope(float x) {
    const float s = sigmoid_of_minus(-x);
    return {x * s, s * fmaf(x, 1.0f - s, 1.0f)};
  }
};

}  // namespace megatron::kernels::cuda
