// bfloat16 with CUDA's names. Every operation is computed in fp32 and rounded to nearest even.
#pragma once

#include "base/dtype.h"
#include "cuda_shim/device.h"

struct __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float x) : bits(megatron::bf16(x).bits) {}
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __float2bfloat16(float x) { return {x}; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {x}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {{x}, {y}}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  __nv_bfloat16 x;
  x.bits = bits;
  return x;
}

inline __nv_bfloat16 operator+(__nv_bfloat16 a, __nv_bfloat16 b) { return {float(a) + float(b)}; }
inline __nv_bfloat16 operator-(__nv_bfloat16 a, __nv_bfloat16 b) { return {float(a) - float(b)}; }
inline __nv_bfloat16 operator*(__nv_bfloat16 a, __nv_bfloat16 b) { return {float(a) * float(b)}; }
inline __nv_bfloat16 operator/(__nv_bfloat16 a, __nv_bfloat16 b) { return {float(a) / float(b)}; }
inline __nv_bfloat16 operator-(__nv_bfloat16 a) { return {-float(a)}; }
inline __nv_bfloat16& operator+=(__nv_bfloat16& a, __nv_bfloat16 b) { return a = a + b; }
inline __nv_bfloat16& operator-=(__nv_bfloat16& a, __nv_bfloat16 b) { return a = a - b; }
inline __nv_bfloat16& operator*=(__nv_bfloat16& a, __nv_bfloat16 b) { return a = a * b; }
inline __nv_bfloat16& operator/=(__nv_bfloat16& a, __nv_bfloat16 b) { return a = a / b; }
inline bool operator==(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) == float(b); }
inline bool operator!=(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) != float(b); }
inline bool operator<(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) < float(b); }
inline bool operator>(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) > float(b); }
inline bool operator<=(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) <= float(b); }
inline bool operator>=(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) >= float(b); }
