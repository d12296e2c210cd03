// Storage types on the device (f32, bf16, f16), their conversions, and vectors of them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "base/dtype.h"

namespace megatron::kernels::cuda {

using Bf16 = __nv_bfloat16;
using F16 = __half;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(Bf16 x) { return __bfloat162float(x); }
__device__ inline float to_float(F16 x) { return __half2float(x); }

// Rounds to nearest, ties to even.
template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline Bf16 from_float<Bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline F16 from_float<F16>(float x) {
  return __float2half_rn(x);
}

// N adjacent elements, read and written in one access; the address must be a multiple of their
// size.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};
template <class T, int N>
__device__ Vector<T, N> load_vector(const T* p) {
  return *reinterpret_cast<const Vector<T, N>*>(p);
}
template <class T, int N>
__device__ void store_vector(T* p, const Vector<T, N>& v) {
  *reinterpret_cast<Vector<T, N>*>(p) = v;
}

// Calls f(T{}) with the device type of a storage type. Throws Error naming the kernel and the type
// for any other.
[[noreturn]] void refuse_type(const char* kernel, DType type);
template <class F>
void for_storage_type(const char* kernel, DType type, F&& f) {
  switch (type) {
    case DType::f32: return f(float{});
    case DType::bf16: return f(Bf16{});
    case DType::f16: return f(F16{});
    default: refuse_type(kernel, type);
  }
}

}  // namespace megatron::kernels::cuda
