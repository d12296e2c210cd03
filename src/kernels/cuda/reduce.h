// Sums over a warp and over a block, always in the same order: the same bits in every lane.
#pragma once

#include <cuda_runtime.h>

namespace megatron::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Every lane of the warp calls these.
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

// Every thread of a block of 1-d shape, of whole warps, calls this, and gets the sum. `partial`
// holds kWarp values in shared memory; it may be used again at once.
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
