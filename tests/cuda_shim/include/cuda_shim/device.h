// Device code's built-ins on the CPU. Each thread of a block is a fiber that runs until it
// synchronizes with others. Threads that wait for each other in any other way, such as a spin on
// memory, hang.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda_shim/vectors.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__

// Indices of the running CUDA thread.
extern __thread uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_shim {

struct Here {
  int lane;                       // lane in its warp
  unsigned char* dynamic_shared;  // shared by its block
};
extern __thread Here here;

enum class WarpCall { shuffle, ballot, sync, matrices, product };
// Waits for all lanes of the warp, which must make the same call. Returns the value of each lane;
// valid until the thread's next call.
const uint64_t* exchange(WarpCall call, unsigned mask, uint64_t value);
// The same for a lane's operands of a matrix product.
struct Operands {
  float value[12];
};
const Operands* exchange_operands(const Operands& operands);
void sync_block();
// Fills `to` with NaNs. When the thread waits, copies, or fills with zeros if `there` is false.
// Stops the kernel if an address is not a multiple of `bytes` or a thread ends without waiting.
void copy_later(void* to, const void* from, int bytes, bool there);
void wait_for_copies();
// Abandons the kernel.
[[noreturn]] void stop_kernel(const char* why);

template <class T>
T shuffled(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = exchange(WarpCall::shuffle, mask, bits)[source];
  if ((mask >> source & 1) == 0) stop_kernel("a shuffle reads a lane that does not exist");
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cuda_shim

inline constexpr int warpSize = 32;

inline void __syncthreads() { cuda_shim::sync_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  cuda_shim::exchange(cuda_shim::WarpCall::sync, mask, 0);
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int first = cuda_shim::here.lane & ~(width - 1);
  return cuda_shim::shuffled(mask, value, first + (source & (width - 1)));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = cuda_shim::here.lane, first = lane & ~(width - 1);
  const int source = lane - static_cast<int>(delta);
  return cuda_shim::shuffled(mask, value, source < first ? lane : source);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = cuda_shim::here.lane, last = lane | (width - 1);
  const int source = lane + static_cast<int>(delta);
  return cuda_shim::shuffled(mask, value, source > last ? lane : source);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int lane = cuda_shim::here.lane, last = lane | (width - 1);
  const int source = lane ^ lanes;
  return cuda_shim::shuffled(mask, value, source > last ? lane : source);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const uint64_t* lanes = cuda_shim::exchange(cuda_shim::WarpCall::ballot, mask, predicate != 0);
  unsigned all = 0;
  for (int i = 0; i < 32; ++i) all |= (mask >> i & 1 & static_cast<unsigned>(lanes[i])) << i;
  return all;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

// Integers only: a sum of floats by atomics would depend on the order of threads.
template <class T>
T atomicAdd(T* p, T value) {
  static_assert(std::is_integral_v<T>, "sums of floats are cut by shape and added in order");
  return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
}
template <class T>
T atomicCAS(T* p, T expected, T value) {
  __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}
template <class T>
T atomicExch(T* p, T value) {
  return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);
}
template <class T>
T atomicOr(T* p, T value) {
  return __atomic_fetch_or(p, value, __ATOMIC_SEQ_CST);
}
template <class T>
T atomicAnd(T* p, T value) {
  return __atomic_fetch_and(p, value, __ATOMIC_SEQ_CST);
}
template <class T>
T atomicMax(T* p, T value) {
  static_assert(std::is_integral_v<T>);
  T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  while (old < value && atomicCAS(p, old, value) != old) old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  return old;
}
template <class T>
T atomicMin(T* p, T value) {
  static_assert(std::is_integral_v<T>);
  T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  while (value < old && atomicCAS(p, old, value) != old) old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  return old;
}

// Loads and stores with cache hints.
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldlu(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}
template <class T>
void __stcg(T* p, T value) {
  *p = value;
}
template <class T>
void __stwt(T* p, T value) {
  *p = value;
}

// Arithmetic. Each function of floats is rounded to nearest.
template <class T>
  requires std::is_arithmetic_v<T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
  requires std::is_arithmetic_v<T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frsqrt_rn(float a) { return static_cast<float>(1.0 / std::sqrt(double{a})); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(std::floor(x)); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(int64_t{a} * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
