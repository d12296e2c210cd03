// Sums over a warp and over a block, always in the same order, so that every lane gets the same
// bits.
#pragma once

#include <cuda_runtime.h>

namespace megatron::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Sum over the warp. Every lane calls this and gets the sum.
template <class T>
__device__ T warp_sum(T x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}
template <class T>
__device__ T warp_max(T x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    x = max(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

// Sum over the block. Every thread calls this and gets the sum; blocks are one-dimensional and
// consist of whole warps. `partial` holds kWarp values in shared memory and may be reused
// immediately.
template <class T>
__device__ T block_sum(T x, T* partial) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp;
  x = warp_sum(x);
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  x = warp_sum(lane < warps ? partial[lane] : T(0));
  __syncthreads();
  return x;
}
__device__ inline float block_max(float x, float* partial) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp;
  x = warp_max(x);
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  x = warp_max(lane < warps ? partial[lane] : -INFINITY);
  __syncthreads();
  return x;
}

}  // namespace megatron::kernels::cuda
