// Router scores and their order on the device. One warp processes one token, and all its lanes call
// these functions together: lane i reads the elements i, i + 32, ... of the token's row.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cmath>

#include "kernels/cuda/reduce.h"
#include "kernels/route.h"

namespace megatron::kernels::cuda {

// Added to the sum of scores before dividing by it.
inline constexpr double kMinSum = 1e-20;

__device__ inline int lane_of_row() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_of_row() { return static_cast<int>(threadIdx.x) / kWarp; }
// Index of this warp's token.
__device__ inline int64_t token_of_warp() {
  return int64_t{blockIdx.x} * (blockDim.x / kWarp) + warp_of_row();
}

template <class C>
__device__ C sigmoid(C x) {
  return 1 / (1 + std::exp(-x));
}
template <class C>
__device__ C softplus(C x) {
  return max(x, C(0)) + std::log1p(std::exp(-std::abs(x)));
}
// Score of one logit (any function but softmax), and its derivative.
template <class C>
__device__ C score_of(RouterScore kind, C x) {
  return kind == RouterScore::sigmoid ? sigmoid(x) : std::sqrt(softplus(x));
}
template <class C>
__device__ C slope_of(RouterScore kind, C x) {
  const C s = sigmoid(x);
  return kind == RouterScore::sigmoid ? s * (1 - s) : s / (2 * std::sqrt(softplus(x)));
}

template <class C>
__device__ C log_sum_exp(const C* x, int count) {
  C most = -INFINITY, sum = 0;
  for (int i = lane_of_row(); i < count; i += kWarp) most = max(most, x[i]);
  most = warp_max(most);
  for (int i = lane_of_row(); i < count; i += kWarp) sum += std::exp(x[i] - most);
  return most + std::log(warp_sum(sum));
}

// A value and its index. Larger values come first; among equal ones, the lower index.
template <class C>
struct Ranked {
  C value = INFINITY;
  int place = -1;  // comes before all others

  __device__ bool before(const Ranked& other) const {
    return value > other.value || (value == other.value && place < other.place);
  }
};

// The first of x[begin], ..., x[end - 1] that comes after `last`. NaN counts as -infinity.
template <class C>
__device__ Ranked<C> next_highest(const C* x, int begin, int end, const Ranked<C>& last) {
  Ranked<C> best{C(-INFINITY), INT_MAX};
  for (int i = begin + lane_of_row(); i < end; i += kWarp) {
    const Ranked<C> mine{x[i] == x[i] ? x[i] : C(-INFINITY), i};
    if (last.before(mine) && mine.before(best)) best = mine;
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Ranked<C> other{__shfl_xor_sync(kAllLanes, best.value, distance),
                          __shfl_xor_sync(kAllLanes, best.place, distance)};
    if (other.before(best)) best = other;
  }
  return best;
}

// Replaces x by its softmax.
template <class C>
__device__ void make_softmax(C* x, int count) {
  const C log_sum = log_sum_exp(x, count);
  for (int i = lane_of_row(); i < count; i += kWarp) x[i] = std::exp(x[i] - log_sum);
}

template <class C>
__device__ C row_sum(const C* x, int count) {
  C sum = 0;
  for (int i = lane_of_row(); i < count; i += kWarp) sum += x[i];
  return warp_sum(sum);
}
template <class C>
__device__ C row_dot(const C* x, const C* y, int count) {
  C sum = 0;
  for (int i = lane_of_row(); i < count; i += kWarp) sum += x[i] * y[i];
  return warp_sum(sum);
}

}  // namespace megatron::kernels::cuda
