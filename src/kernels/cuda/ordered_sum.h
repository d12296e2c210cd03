// Sums in f64 in ascending order, computed by one block.
#pragma once

#include <algorithm>

#include "kernels/cuda/launch.h"

namespace megatron::kernels::cuda {

inline constexpr int kOrderedChunk = 1024;

// value(0) + value(1) + ... + value(n - 1), added one after another. All kThreads threads of a
// block call this. Thread 0 returns the sum, while the others fetch the next values.
template <class F>
__device__ double ordered_sum(int64_t n, F&& value) {
  __shared__ double chunks[2][kOrderedChunk];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < std::min<int64_t>(n, kOrderedChunk); i += kThreads)
    chunks[0][i] = value(i);
  __syncthreads();
  int current = 0;
  for (int64_t begin = 0; begin < n; begin += kOrderedChunk, current ^= 1) {
    const int64_t next = begin + kOrderedChunk, end = std::min(n, next + kOrderedChunk);
    if (threadIdx.x == 0) {
      const int count = static_cast<int>(std::min<int64_t>(n - begin, kOrderedChunk));
#pragma unroll 16
      for (int i = 0; i < count; ++i) sum = __dadd_rn(sum, chunks[current][i]);
    } else if (threadIdx.x >= 32) {
      for (int64_t i = next + threadIdx.x - 32; i < end; i += kThreads - 32)
        chunks[current ^ 1][i - next] = value(i);
    }
    __syncthreads();
  }
  return sum;
}

}  // namespace megatron::kernels::cuda
