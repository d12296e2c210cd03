// A row of logits that a block of threads reads once: as much of it as fits is kept in shared
// memory, and the rest is read again when it is needed again.
#pragma once

#include <algorithm>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/softmax_sum.h"

namespace megatron::kernels::cuda {

// Chunks that a thread has to read where there are threads for all of them; and those that it reads
// before it computes, fewer where code takes more registers than there are. The order of its
// chunks, and with it every sum, is the same.
inline constexpr int kLogitsTogether = 4;
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ >= 1000)
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
  bool aligned;          // to 16 bytes

  // Calls f(values, first element, elements) for each of the thread's chunks: from memory, which
  // keeps them, or as kept and, what is not, from memory again, the last first: it was read last
  // and is in the cache. Values beyond the row are -infinity.
  template <bool kKeep, class F>
  __device__ void each(F f) const {
    const int threads = static_cast<int>(blockDim.x), step = kLogitsInFlight * threads;
    const int chunks = static_cast<int>((width + N - 1) / N), last = (chunks - 1) / step * step;
    for (int begin = 0; begin < chunks; begin += step) {
      const int first = (kKeep ? begin : last - begin) + static_cast<int>(threadIdx.x);
      Values values[kLogitsInFlight];
#pragma unroll
      for (int k = 0; k < kLogitsInFlight; ++k) {
        const int chunk = first + k * threads;
        values[k] = !kKeep && chunk < keeps ? kept[chunk] : load(chunk);
      }
#pragma unroll
      for (int k = 0; k < kLogitsInFlight; ++k) {
        const int chunk = first + k * threads;
        if (chunk >= chunks) break;
        if (kKeep && chunk < keeps) kept[chunk] = values[k];
        const int64_t element = static_cast<int64_t>(chunk) * N;
        f(values[k], element, width - element);
      }
    }
  }

  __device__ Values load(int chunk) const {
    const int64_t element = static_cast<int64_t>(chunk) * N, count = width - element;
    Values values = load_chunk<N>(x + element, count, aligned && count >= N);
    if (count < N) {
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (j >= count) values.at[j] = from_float<T>(-INFINITY);
    }
    return values;
  }

  // Sum over the whole row, in every thread; `partial` as for block_sum.
  __device__ SoftmaxSum sum(float* partial) const {
    SoftmaxSum mine;
    each<true>([&](const Values& values, int64_t, int64_t) {
      float numbers[N];
#pragma unroll
      for (int j = 0; j < N; ++j) numbers[j] = to_float(values.at[j]);
      mine.add(numbers);
    });
    return block_merge(mine, partial);
  }
};

// Writes a chunk of a row that has `count` elements from there on. Of rows that are aligned, the
// last chunk alone may be written one by one.
template <int N, class T>
__device__ void store_logits(T* p, const Vector<T, N>& from, int64_t count, bool aligned) {
  store_chunk(p, from, count, aligned && count >= N);
}

// Writes zeros to a row, in chunks of N.
template <int N, class T>
__device__ void clear_row(T* row, int64_t width, bool aligned) {
  Vector<T, N> zeros;
#pragma unroll
  for (int j = 0; j < N; ++j) zeros.at[j] = from_float<T>(0.0f);
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < width;
       i += static_cast<int64_t>(blockDim.x) * N)
    store_logits(row + i, zeros, width - i, aligned);
}

// Threads for rows of that many chunks: as many as leave room for the rows, and the
// registers, of others, up to four on a multiprocessor. A row's sums depend on them.
inline unsigned logits_threads(int64_t chunks) {
  constexpr int64_t kRows = 200 << 10;  // bytes of rows on a multiprocessor
  const int64_t blocks =
      std::clamp<int64_t>(kRows / std::max<int64_t>(chunks * kVectorBytes, 1), 1, 4);
  const int64_t threads = ceil_div(ceil_div(chunks, kLogitsTogether), kWarp) * kWarp;
  return static_cast<unsigned>(
      std::clamp<int64_t>(threads, kWarp, kLogitsThreads / blocks / kWarp * kWarp));
}
// Distance of the rows of a tensor [T,V], in elements; 0 for an undefined one.
inline int64_t rows_apart(const Tensor& t) {
  if (!t.defined()) return 0;
  return t.size(0) == 1 ? t.size(1) : t.stride(0);
}
// Bytes of shared memory that a row's block may have on the stream's device.
int64_t logits_memory(const Stream& stream);

}  // namespace megatron::kernels::cuda
