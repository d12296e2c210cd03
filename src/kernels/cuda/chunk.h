// Rows of numbers in chunks of 16 bytes, one a thread at a time. An element belongs to the same
// chunk wherever its row lies: of rows that do not begin at multiples of 16 bytes, or that end
// inside of a chunk, the elements are read and written one by one.
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

// Items of element-wise work, which kernels number in 32 bits. Throws Error naming the kernel when
// there are more.
uint32_t count_items(const char* kernel, int64_t items);

// N neighbours from p on, of which `count` are there (none for 0 and less); others are 0. whole:
// all are there and p is a multiple of 16 bytes.
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
// Has the cache of the second level read what lies there, which is some tensor's, beforehand.
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
