// A row of logits that one block reads from memory once if it fits into shared memory. The part
// that does not fit is read again when it is needed again.
#pragma once

#include <algorithm>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/softmax_sum.h"

namespace megatron::kernels::cuda {

// kLogitsTogether: chunks per thread if the row has threads for all of them. kLogitsInFlight:
// chunks that a thread reads before it computes, fewer on GPUs where the code would need too many
// registers. It does not affect the order of a thread's chunks or any sum.
inline constexpr int kLogitsTogether = 4;
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ >= 1000)
inline constexpr int kLogitsInFlight = 2;
#else
inline constexpr int kLogitsInFlight = kLogitsTogether;
#endif
inline constexpr int kLogitsThreads = 896;  // leaves each thread 72 registers

template <class T>
struct LogitsRow {
  static constexpr int N = kChunk<T>;
  using Values = Vector<T, N>;

  const T* x;
  Values* kept;          // in shared memory
  int64_t width, keeps;  // keeps: number of chunks in shared memory
  bool aligned;          // x is a multiple of 16 bytes

  // Calls f(values, first element, elements) for each of the thread's chunks. If kKeep, chunks are
  // read from memory and as many as fit are kept in shared memory. If not, kept chunks come from
  // there and the others from memory; the order is reversed because the last chunks are most likely
  // still cached. Values beyond the row are -infinity.
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

  // Returns the sum over the whole row in every thread. `partial` as for block_sum.
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

// Writes a chunk of a row, `count` elements before the row's end. In an aligned row only the last
// chunk may need element-wise writes.
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

// Threads per row of that many chunks. Leaves shared memory and registers for the rows of up to
// three more blocks on the same multiprocessor. A row's sums depend on this number.
inline unsigned logits_threads(int64_t chunks) {
  constexpr int64_t kRows = 200 << 10;  // bytes of rows per multiprocessor
  const int64_t blocks =
      std::clamp<int64_t>(kRows / std::max<int64_t>(chunks * kVectorBytes, 1), 1, 4);
  const int64_t threads = ceil_div(ceil_div(chunks, kLogitsTogether), kWarp) * kWarp;
  return static_cast<unsigned>(
      std::clamp<int64_t>(threads, kWarp, kLogitsThreads / blocks / kWarp * kWarp));
}
// Row stride of a tensor [T,V] in elements; 0 for an undefined one.
inline int64_t rows_apart(const Tensor& t) {
  if (!t.defined()) return 0;
  return t.size(0) == 1 ? t.size(1) : t.stride(0);
}
// Bytes of shared memory for the row of one block on the stream's device.
int64_t logits_memory(const Stream& stream);

}  // namespace megatron::kernels::cuda
