// Vectors of f32 with f32 or bf16 memory, included once per instruction set (after
// hwy/foreach_target.h). Every element goes through the same operations wherever it lies: a tail is
// a full vector of which only the first elements are loaded or stored.
#if defined(MEGATRON_KERNELS_CPU_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_SIMD_INL_H
#undef MEGATRON_KERNELS_CPU_SIMD_INL_H
#else
#define MEGATRON_KERNELS_CPU_SIMD_INL_H
#endif

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::ScalableTag<uint32_t>;
using Halves = hn::Rebind<uint16_t, Floats>;
using V = hn::Vec<Floats>;
inline constexpr Floats kFloats{};
inline constexpr int64_t kLanes = HWY_LANES(float);

// How many elements of a vector are meant: all, or the first n.
struct Whole {};
struct Part {
  int64_t n;
};

HWY_INLINE V load(const float* p) { return hn::LoadU(kFloats, p); }
HWY_INLINE V load(const bf16* p) {
  const auto bits =
      hn::PromoteTo(Words(), hn::LoadU(Halves(), reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(kFloats, hn::ShiftLeft<16>(bits));
}

HWY_INLINE void store(V v, float* p) { hn::StoreU(v, kFloats, p); }
// The bits of bf16(float) in the upper half of each word: rounded to nearest, ties to even; a NaN
// stays a quiet NaN. The lower half is undefined.
HWY_INLINE hn::Vec<Words> round_to_bf16(V v) {
  const Words words;
  const auto bits = hn::BitCast(words, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(words, 0x7fffu)), odd);
  const auto quiet = hn::Or(bits, hn::Set(words, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(v)), quiet, rounded);
}
HWY_INLINE void store(V v, bf16* p) {
  const auto upper = hn::ShiftRight<16>(round_to_bf16(v));
  hn::StoreU(hn::TruncateTo(Halves(), upper), Halves(), reinterpret_cast<uint16_t*>(p));
}

template <class T>
HWY_INLINE V load(const T* p, Whole) {
  return load(p);
}
// Elements from n on are zero.
template <class T>
HWY_INLINE V load(const T* p, Part part) {
  T buffer[kLanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(part.n) * sizeof(T));
  return load(buffer);
}
template <class T>
HWY_INLINE void store(V v, T* p, Whole) {
  store(v, p);
}
template <class T>
HWY_INLINE void store(V v, T* p, Part part) {
  T buffer[kLanes];
  store(v, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(part.n) * sizeof(T));
}

// v, with elements that are not meant replaced.
HWY_INLINE V keep(V v, Whole) { return v; }
HWY_INLINE V keep(V v, Part part) {
  return hn::IfThenElseZero(hn::FirstN(kFloats, static_cast<size_t>(part.n)), v);
}
HWY_INLINE V keep_or(V v, V, Whole) { return v; }
HWY_INLINE V keep_or(V v, V other, Part part) {
  return hn::IfThenElse(hn::FirstN(kFloats, static_cast<size_t>(part.n)), v, other);
}

HWY_INLINE V set(float value) { return hn::Set(kFloats, value); }

// Calls f(i, Whole or Part) for the vectors of [begin, end).
template <class F>
HWY_INLINE void for_vectors(int64_t begin, int64_t end, F f) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) f(i, Whole{});
  if (i < end) f(i, Part{end - i});
}

// Sums over [0, n): element i goes to one of 32 sums by i % 32, and these are added by halves (lane
// l + lane l + 16, ...): one order for every width of vector.
inline constexpr int64_t kSums = 32;
inline constexpr int64_t kSumVectors = kSums / kLanes;

HWY_INLINE float add_lanes(V (&sums)[kSumVectors]) {
  for (int64_t half = kSumVectors / 2; half > 0; half /= 2) {
    for (int64_t k = 0; k < half; ++k) sums[k] = hn::Add(sums[k], sums[k + half]);
  }
  float lanes[kLanes];
  store(sums[0], lanes);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

// f(i, Whole or Part) gives the terms of the vector at i.
template <class F>
HWY_INLINE float sum_of(int64_t n, F f) {
  V sums[kSumVectors];
  for (V& s : sums) s = hn::Zero(kFloats);
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int64_t k = 0; k < kSumVectors; ++k)
      sums[k] = hn::Add(sums[k], f(i + k * kLanes, Whole{}));
  }
  for (int64_t k = 0; k < kSumVectors; ++k, i += kLanes) {
    if (i + kLanes <= n) {
      sums[k] = hn::Add(sums[k], f(i, Whole{}));
    } else if (i < n) {
      sums[k] = hn::Add(sums[k], keep(f(i, Part{n - i}), Part{n - i}));
    }
  }
  return add_lanes(sums);
}

struct TwoTerms {
  V a, b;
};
struct TwoSums {
  float a, b;
};
template <class F>
HWY_INLINE TwoSums two_sums_of(int64_t n, F f) {
  V a[kSumVectors], b[kSumVectors];
  for (V& s : a) s = hn::Zero(kFloats);
  for (V& s : b) s = hn::Zero(kFloats);
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int64_t k = 0; k < kSumVectors; ++k) {
      const TwoTerms terms = f(i + k * kLanes, Whole{});
      a[k] = hn::Add(a[k], terms.a);
      b[k] = hn::Add(b[k], terms.b);
    }
  }
  for (int64_t k = 0; k < kSumVectors; ++k, i += kLanes) {
    if (i + kLanes <= n) {
      const TwoTerms terms = f(i, Whole{});
      a[k] = hn::Add(a[k], terms.a);
      b[k] = hn::Add(b[k], terms.b);
    } else if (i < n) {
      const TwoTerms terms = f(i, Part{n - i});
      a[k] = hn::Add(a[k], keep(terms.a, Part{n - i}));
      b[k] = hn::Add(b[k], keep(terms.b, Part{n - i}));
    }
  }
  return {add_lanes(a), add_lanes(b)};
}

// v * 2^n for integral n; exact but for a result below the smallest normal number, which is rounded
// once.
HWY_INLINE V scale_by_power(V v, V n) {
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_scalef_ps(v.raw, n.raw)};
#else
  const hn::RebindToSigned<Floats> integers;
  const auto whole = hn::ConvertTo(integers, n);
  const auto half = hn::ShiftRight<1>(whole);
  const auto power = [&](auto e) {
    return hn::BitCast(kFloats, hn::ShiftLeft<23>(hn::Add(e, hn::Set(integers, 127))));
  };
  return hn::Mul(hn::Mul(v, power(half)), power(hn::Sub(whole, half)));
#endif
}

// e^x for every x, within 1.1 ulp (of the least number where the result is below the smallest
// normal number); 0 below -104, infinity above 88.73, NaN for NaN.
HWY_INLINE V exp(V x) {
  const V bounded = hn::Min(set(90.0f), hn::Max(set(-105.0f), x));
  const V n = hn::Round(hn::Mul(bounded, set(1.44269504f)));
  V r = hn::NegMulAdd(n, set(0.693145752f), bounded);
  r = hn::NegMulAdd(n, set(1.42860677e-6f), r);
  V q = hn::MulAdd(r, set(0.00139262135f), set(0.00836320297f));
  q = hn::MulAdd(q, r, set(0.0416665544f));
  q = hn::MulAdd(q, r, set(0.166665768f));
  q = hn::MulAdd(q, r, set(0.5f));
  q = hn::MulAdd(hn::Mul(r, r), q, r);
  return scale_by_power(hn::Add(q, set(1.0f)), n);
}

// 1 / (1 + e^-x).
HWY_INLINE V sigmoid(V x) { return hn::Div(set(1.0f), hn::Add(set(1.0f), exp(hn::Neg(x)))); }

// Phi(x), the distribution function of the normal distribution; absolute error below 1e-7, 0 for x
// < -5.65. By erfc(z) = exp(-z p(z)), p a polynomial on [0, 4].
HWY_INLINE V normal_distribution(V x) {
  const V z = hn::Mul(hn::Abs(x), set(0.707106781f));
  const V y = hn::Min(set(4.0f), z);
  V p = hn::MulAdd(y, set(-8.04070205e-6f), set(0.000106005522f));
  p = hn::MulAdd(p, y, set(-0.000587909538f));
  p = hn::MulAdd(p, y, set(0.00157677345f));
  p = hn::MulAdd(p, y, set(-5.89235460e-5f));
  p = hn::MulAdd(p, y, set(-0.0192169580f));
  p = hn::MulAdd(p, y, set(0.102799108f));
  p = hn::MulAdd(p, y, set(0.636616132f));
  p = hn::MulAdd(p, y, set(1.12837933f));
  const V half = hn::Mul(set(0.5f), exp(hn::Neg(hn::Mul(p, y))));
  const V tail = hn::IfThenZeroElse(hn::Gt(z, set(4.0f)), half);
  return hn::IfThenElse(hn::Lt(x, hn::Zero(kFloats)), tail, hn::Sub(set(1.0f), tail));
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
