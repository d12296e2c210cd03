// fp16 with CUDA's names. Every operation is computed in fp32 and rounded to nearest even.
#pragma once

#include "base/dtype.h"
#include "cuda_shim/device.h"

namespace cuda_shim {
unsigned short half_bits(float x);
float half_value(unsigned short bits);
}  // namespace cuda_shim

struct __half {
  unsigned short bits;
  __half() = default;
  __half(float x) : bits(cuda_shim::half_bits(x)) {}
  operator float() const { return cuda_shim::half_value(bits); }
};
struct alignas(4) __half2 {
  __half x, y;
};
using half = __half;
using half2 = __half2;

inline float __half2float(__half x) { return x; }
inline __half __float2half(float x) { return {x}; }
inline __half __float2half_rn(float x) { return {x}; }
inline __half2 __floats2half2_rn(float x, float y) { return {{x}, {y}}; }
inline float2 __half22float2(__half2 v) { return {v.x, v.y}; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(unsigned short bits) {
  __half x;
  x.bits = bits;
  return x;
}

inline __half operator+(__half a, __half b) { return {float(a) + float(b)}; }
inline __half operator-(__half a, __half b) { return {float(a) - float(b)}; }
inline __half operator*(__half a, __half b) { return {float(a) * float(b)}; }
inline __half operator/(__half a, __half b) { return {float(a) / float(b)}; }
inline __half operator-(__half a) { return {-float(a)}; }
inline __half& operator+=(__half& a, __half b) { return a = a + b; }
inline __half& operator-=(__half& a, __half b) { return a = a - b; }
inline __half& operator*=(__half& a, __half b) { return a = a * b; }
inline __half& operator/=(__half& a, __half b) { return a = a / b; }
inline bool operator==(__half a, __half b) { return float(a) == float(b); }
inline bool operator!=(__half a, __half b) { return float(a) != float(b); }
inline bool operator<(__half a, __half b) { return float(a) < float(b); }
inline bool operator>(__half a, __half b) { return float(a) > float(b); }
inline bool operator<=(__half a, __half b) { return float(a) <= float(b); }
inline bool operator>=(__half a, __half b) { return float(a) >= float(b); }
