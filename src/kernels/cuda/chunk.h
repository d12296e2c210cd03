// Rows of numbers in chunks of 16 bytes, one chunk per thread at a time. Which chunk an element
// belongs to does not depend on the row's address. Rows that do not begin at a multiple of 16
// bytes, and a last chunk that is incomplete, are read and written element by element.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.h"
#include "tensor/tensor.h"

namespace megatron::kernels::cuda {

template <class T>
inline constexpr int kChunk = kVectorBytes / static_cast<int>(sizeof(T));

// True if all addresses are multiples of 16 bytes.
inline bool are_aligned(std::initializer_list<const void*> addresses) {
  for (const void* p : addresses)
    if (reinterpret_cast<uintptr_t>(p) % kVectorBytes != 0) return false;
  return true;
}

// Device address of a tensor; null for an undefined one.
template <class T>
T* address_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.address()) : nullptr;
}

// Returns the number of items of element-wise work as the 32-bit number that kernels use. Throws
// Error naming the kernel if it does not fit.
uint32_t count_items(const char* kernel, int64_t items);

// Reads N adjacent elements from p on. Only the first `count` exist (none if it is 0 or negative);
// the others become 0. whole: all N exist and p is a multiple of 16 bytes.
template <int N, class T>
__device__ Vector<T, N> load_chunk(const T* p, int64_t count, bool whole) {
  constexpr int kPart = N < kChunk<T> ? N : kChunk<T>;
  Vector<T, N> to;
  if (whole && count > 0) {
#pragma unroll
    for (int part = 0; part < N; part += kPart) {
      const Vector<T, kPart> v = load_vector<T, kPart>(p + part);
#pragma unroll
      for (int j = 0; j < kPart; ++j) to.at[part + j] = v.at[j];
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) to.at[j] = j < count ? p[j] : T(0.0f);
  }
  return to;
}
// Prefetches the L2 cache line at p, which must be an address within a tensor.
template <class T>
__device__ void prefetch([[maybe_unused]] const T* p) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

template <int N, class T>
__device__ void store_chunk(T* p, const Vector<T, N>& from, int64_t count, bool whole) {
  constexpr int kPart = N < kChunk<T> ? N : kChunk<T>;
  if (whole && count > 0) {
#pragma unroll
    for (int part = 0; part < N; part += kPart) {
      Vector<T, kPart> v;
#pragma unroll
      for (int j = 0; j < kPart; ++j) v.at[j] = from.at[part + j];
      store_vector<T, kPart>(p + part, v);
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (j < count) p[j] = from.at[j];
  }
}

}  // namespace megatron::kernels::cuda
