// A row of logits that a block of threads reads once: as much of it as fits is kept in shared
// memory, and the rest is read again when it is needed again.
#pragma once

#include <algorithm>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/softmax_sum.h"

namespace megatron::kernels::cuda {

// Chunks that a thread has to read where there are threads for all of them; and those that it reads
// before it computes, fewer where code takes more registers than there are. The order of its chunks,
// and with it every sum, is the same.
inline constexpr int kLogitsTogether = 4;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
inline constexpr int kLogitsInFlight = 2;
#else
inline constexpr int kLogitsInFlight = kLogitsTogether;
#endif
inline constexpr int kLogitsThreads = 896;  // which leaves each 72 registers

template <class T>
struct LogitsRow {
  static constexpr int N = kChunk<T>;
  using Values = Vector<T, N>;

  const T* x;
  Values* kept;          // in shared memory
  int64_t width, keeps;  // keeps: chunks
  bool whole;

  // Calls f(values, first element, elements) for each of the thread's chunks: from memory, which
  // keeps them, or as kept.
  template <bool kKeep, class F>
  __device__ void each(F f) const {
    const int64_t chunks = (width + N - 1) / N, threads = blockDim.x;
    for (int64_t first = threadIdx.x; first < chunks; first += kLogitsInFlight * threads) {
      Values values[kLogitsInFlight];
#pragma unroll
      for (int k = 0; k < kLogitsInFlight; ++k) {
        const int64_t chunk = first + k * threads;
        if (!kKeep && chunk < keeps) values[k] = kept[chunk];
        else values[k] = load_chunk<N>(x + chunk * N, width - chunk * N, whole);
      }
#pragma unroll
      for (int k = 0; k < kLogitsInFlight; ++k) {
        const int64_t chunk = first + k * threads;
        if (chunk >= chunks) break;
        if (kKeep && chunk < keeps) kept[chunk] = values[k];
        f(values[k], chunk * N, width - chunk * N);
      }
    }
  }

  // Of the whole row, in every thread; `partial` as block_sum's.
  __device__ SoftmaxSum sum(float* partial) const {
    SoftmaxSum mine;
    each<true>([&](const Values& values, int64_t, int64_t count) {
      float numbers[N];
#pragma unroll
      for (int j = 0; j < N; ++j) numbers[j] = j < count ? to_float(values.at[j]) : -INFINITY;
      mine.add(numbers);
    });
    return block_merge(mine, partial);
  }
};

// Writes zeros to a row, in chunks of N.
template <int N, class T>
__device__ void clear_row(T* row, int64_t width, bool whole) {
  Vector<T, N> zeros;
#pragma unroll
  for (int j = 0; j < N; ++j) zeros.at[j] = from_float<T>(0.0f);
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < width;
       i += static_cast<int64_t>(blockDim.x) * N)
    store_chunk(row + i, zeros, width - i, whole);
}

// Threads for rows of that many chunks.
inline unsigned logits_threads(int64_t chunks) {
  const int64_t threads = ceil_div(ceil_div(chunks, kLogitsTogether), kWarp) * kWarp;
  return static_cast<unsigned>(std::clamp<int64_t>(threads, kWarp, kLogitsThreads));
}
// Bytes of shared memory that a row's block may have on the stream's device.
int64_t logits_memory(const Stream& stream);

}  // namespace megatron::kernels::cuda
