// Vectors of f32 with memory of f32 or bf16, included once per instruction set (after
// hwy/foreach_target.h). Every element goes through the same operations regardless of its position:
// a tail is a full vector of which only the first elements are loaded or stored.
#if defined(MEGATRON_KERNELS_CPU_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_SIMD_INL_H
#undef MEGATRON_KERNELS_CPU_SIMD_INL_H
#else
#define MEGATRON_KERNELS_CPU_SIMD_INL_H
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "hwy/highway.h"
#include "kernels/cpu/blocks.h"

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

// Number of elements of a vector that are used: all, or the first n.
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
// Converts to bf16, in the upper half of each word: rounds to nearest, ties to even; a NaN stays a
// quiet NaN. The lower half is undefined.
HWY_INLINE hn::Vec<Words> round_to_bf16(V v) {
  const Words words;
  const auto bits = hn::BitCast(words, v);
#if HWY_TARGET == HWY_AVX3
  const __m512i below_half = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1);
  const __mmask16 odd = _mm512_test_epi32_mask(bits.raw, _mm512_set1_epi32(0x10000));
  const __m512i near = _mm512_add_epi32(bits.raw, below_half);
  const __m512i rounded = _mm512_mask_add_epi32(near, odd, near, one);
  const __mmask16 nan = _mm512_cmp_ps_mask(v.raw, v.raw, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_set1_epi32(0x400000);
  return hn::Vec<Words>{_mm512_mask_or_epi32(rounded, nan, bits.raw, quiet)};
#else
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(words, 0x7fffu)), odd);
  const auto quiet = hn::Or(bits, hn::Set(words, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(v)), quiet, rounded);
#endif
}
HWY_INLINE void store(V v, bf16* p) {
  const auto upper = hn::ShiftRight<16>(round_to_bf16(v));
  hn::StoreU(hn::TruncateTo(Halves(), upper), Halves(), reinterpret_cast<uint16_t*>(p));
}

// Uses a streaming store if the output demands it. Streamed outputs are aligned (is_streamed).
// Vectors of fewer than 16 bytes (bf16 on 128-bit targets) have no such store.
HWY_INLINE void store(V v, Output<float> out) {
  if (out.streamed) {
    hn::Stream(v, kFloats, out.p);
  } else {
    store(v, out.p);
  }
}
HWY_INLINE void store(V v, Output<bf16> out) {
  if constexpr (kLanes * sizeof(bf16) >= 16) {
    if (out.streamed) {
      const auto upper = hn::ShiftRight<16>(round_to_bf16(v));
      return hn::Stream(hn::TruncateTo(Halves(), upper), Halves(),
                        reinterpret_cast<uint16_t*>(out.p));
    }
  }
  store(v, out.p);
}

template <class T>
HWY_INLINE V load(const T* p, Whole) {
  return load(p);
}
// Elements from n on become zero.
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
template <class T>
HWY_INLINE void store(V v, Output<T> out, Whole) {
  store(v, out);
}
template <class T>
HWY_INLINE void store(V v, Output<T> out, Part part) {
  store(v, out.p, part);
}

// v with zeros in place of unused elements.
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

// Number of elements of `out`, at most n, before its first cache line; 0 if stores need not be
// aligned to lines.
template <class T>
HWY_INLINE int64_t before_line(Output<T> out, int64_t n) {
  if (!out.streamed) return 0;
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out.p) % kCacheLine);
  return std::min(n, (kCacheLine - past) % kCacheLine / static_cast<int64_t>(sizeof(T)));
}

// Two vectors with the elements [i, i + 2 kLanes), in an order that depends on the type alone. f32
// elements are in memory order. For bf16, `a` has the elements at even indices and `b` those at odd
// ones, which a shift and a mask extract at a third of the cost of vectors in memory order. For
// loops over tensors of one type.
struct VectorPair {
  V a, b;
};
// Bytes of a VectorPair in memory of T.
template <class T>
inline constexpr int64_t kPairBytes = 2 * kLanes * static_cast<int64_t>(sizeof(T));

HWY_INLINE VectorPair load_pair(const float* p) { return {load(p), load(p + kLanes)}; }
HWY_INLINE VectorPair load_pair(const bf16* p) {
  const Words words;
  const auto bits = hn::LoadU(words, reinterpret_cast<const uint32_t*>(p));
  return {hn::BitCast(kFloats, hn::ShiftLeft<16>(bits)),
          hn::BitCast(kFloats, hn::And(bits, hn::Set(words, 0xffff0000u)))};
}
HWY_INLINE void store_pair(VectorPair v, float* p) {
  store(v.a, p);
  store(v.b, p + kLanes);
}
HWY_INLINE hn::Vec<hn::Repartition<uint16_t, Words>> rounded_two(VectorPair v) {
  const hn::Repartition<uint16_t, Words> halves;
  const auto even = hn::BitCast(halves, hn::ShiftRight<16>(round_to_bf16(v.a)));
  return hn::OddEven(hn::BitCast(halves, round_to_bf16(v.b)), even);
}
HWY_INLINE void store_pair(VectorPair v, bf16* p) {
  const hn::Repartition<uint16_t, Words> halves;
  hn::StoreU(rounded_two(v), halves, reinterpret_cast<uint16_t*>(p));
}
HWY_INLINE void store_pair(VectorPair v, Output<float> out) {
  store(v.a, out);
  store(v.b, out + kLanes);
}
HWY_INLINE void store_pair(VectorPair v, Output<bf16> out) {
  const hn::Repartition<uint16_t, Words> halves;
  auto* p = reinterpret_cast<uint16_t*>(out.p);
  if (out.streamed) {
    hn::Stream(rounded_two(v), halves, p);
  } else {
    hn::StoreU(rounded_two(v), halves, p);
  }
}
// v after a round trip through memory of T.
template <class T>
HWY_INLINE VectorPair as_stored(VectorPair v) {
  if constexpr (sizeof(T) == sizeof(bf16)) {
    const auto upper = hn::Set(Words(), 0xffff0000u);
    return {hn::BitCast(kFloats, hn::And(round_to_bf16(v.a), upper)),
            hn::BitCast(kFloats, hn::And(round_to_bf16(v.b), upper))};
  } else {
    return v;
  }
}
template <class T>
HWY_INLINE VectorPair load_pair(const T* p, Whole) {
  return load_pair(p);
}
// Elements from n on become zero.
template <class T>
HWY_INLINE VectorPair load_pair(const T* p, Part part) {
  T buffer[2 * kLanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(part.n) * sizeof(T));
  return load_pair(buffer);
}
template <class T>
HWY_INLINE void store_pair(VectorPair v, T* p, Whole) {
  store_pair(v, p);
}
template <class T>
HWY_INLINE void store_pair(VectorPair v, T* p, Part part) {
  T buffer[2 * kLanes];
  store_pair(v, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(part.n) * sizeof(T));
}
template <class T>
HWY_INLINE void store_pair(VectorPair v, Output<T> out, Whole) {
  store_pair(v, out);
}
template <class T>
HWY_INLINE void store_pair(VectorPair v, Output<T> out, Part part) {
  store_pair(v, out.p, part);
}

// Stores a pair of vectors whose elements are in memory order.
HWY_INLINE void store_in_order(VectorPair v, Output<float> out) { store_pair(v, out); }
HWY_INLINE void store_in_order(VectorPair v, Output<bf16> out) {
  const hn::Repartition<uint16_t, Words> halves;
  const auto rounded = [&](V x) { return hn::BitCast(halves, round_to_bf16(x)); };
  const auto bits = hn::ConcatOdd(halves, rounded(v.b), rounded(v.a));
  auto* p = reinterpret_cast<uint16_t*>(out.p);
  if (out.streamed) {
    hn::Stream(bits, halves, p);
  } else {
    hn::StoreU(bits, halves, p);
  }
}
template <class T>
HWY_INLINE void store_in_order(VectorPair v, Output<T> out, Whole) {
  store_in_order(v, out);
}
template <class T>
HWY_INLINE void store_in_order(VectorPair v, Output<T> out, Part part) {
  T buffer[2 * kLanes];
  store_in_order(v, Output<T>{buffer, false});
  std::memcpy(out.p, buffer, static_cast<size_t>(part.n) * sizeof(T));
}

// Loads f32 elements from memory order into load_pair's order for T.
template <class T>
HWY_INLINE VectorPair load_pair_for(const float* p, Whole) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return load_pair(p);
  } else {
    VectorPair v;
    hn::LoadInterleaved2(kFloats, p, v.a, v.b);
    return v;
  }
}
template <class T>
HWY_INLINE VectorPair load_pair_for(const float* p, Part part) {
  float buffer[2 * kLanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(part.n) * sizeof(float));
  return load_pair_for<T>(buffer, Whole{});
}
template <class T>
HWY_INLINE void store_pair_for(VectorPair v, float* p, Whole) {
  if constexpr (sizeof(T) == sizeof(float)) {
    store_pair(v, p);
  } else {
    hn::StoreInterleaved2(v.a, v.b, kFloats, p);
  }
}
template <class T>
HWY_INLINE void store_pair_for(VectorPair v, float* p, Part part) {
  float buffer[2 * kLanes];
  store_pair_for<T>(v, buffer, Whole{});
  std::memcpy(p, buffer, static_cast<size_t>(part.n) * sizeof(float));
}

// Calls f(i, Whole or Part) for the pairs of vectors of [begin, end).
template <class F>
HWY_INLINE void for_pairs(int64_t begin, int64_t end, F f) {
  int64_t i = begin;
  for (; i + 2 * kLanes <= end; i += 2 * kLanes) f(i, Whole{});
  if (i < end) f(i, Part{end - i});
}

// Column sums over rows of T. Whole pairs of vectors stay in load_pair's order until in_order()
// restores memory order.
template <class T>
class ColumnSums {
 public:
  ColumnSums(float* sums, int64_t begin, int64_t end) : sums_(sums), begin_(begin), end_(end) {
    std::fill(sums + begin, sums + end, 0.0f);
  }
  HWY_INLINE VectorPair at(int64_t i, Whole) const { return load_pair(sums_ + i); }
  HWY_INLINE VectorPair at(int64_t i, Part part) const { return load_pair_for<T>(sums_ + i, part); }
  HWY_INLINE void set(int64_t i, VectorPair v, Whole) { store_pair(v, sums_ + i); }
  HWY_INLINE void set(int64_t i, VectorPair v, Part part) { store_pair_for<T>(v, sums_ + i, part); }
  void in_order() {
    for_pairs(begin_, end_, [&](int64_t i, auto n) { store_pair_for<T>(at(i, n), sums_ + i, n); });
  }

 private:
  float* sums_;
  int64_t begin_, end_;
};

// Sums over [0, n). Element i goes to one of 32 sums by i % 32, and these are added by halves (lane
// l + lane l + 16, ...), so that the order is the same for every vector width.
inline constexpr int64_t kSums = 32;
inline constexpr int64_t kSumVectors = kSums / kLanes;

template <class D>
HWY_INLINE float add_halves(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) > 4) {
    const hn::Half<D> half;
    return add_halves(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    const auto two = hn::Add(v, hn::Shuffle1032(v));
    return hn::GetLane(hn::Add(two, hn::Shuffle2301(two)));
  }
}

template <int64_t N>
HWY_INLINE float add_lanes(V (&sums)[N]) {
  for (int64_t half = N / 2; half > 0; half /= 2) {
    for (int64_t k = 0; k < half; ++k) sums[k] = hn::Add(sums[k], sums[k + half]);
  }
  return add_halves(kFloats, sums[0]);
}

// f(i, Whole or Part) returns the terms of the vector at i.
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

// v with zeros after the first part.n elements, in load_pair's order for T.
template <class T>
HWY_INLINE VectorPair keep_two(VectorPair v, Part part) {
  if constexpr (sizeof(T) == sizeof(bf16)) {
    return {keep(v.a, Part{(part.n + 1) / 2}), keep(v.b, Part{part.n / 2})};
  } else {
    return {keep(v.a, Part{std::min(part.n, kLanes)}),
            keep(v.b, Part{std::max<int64_t>(0, part.n - kLanes)})};
  }
}

// The 32 sums for pairs of vectors in load_pair's order for T. For bf16, adjacent sums are added
// first, 0 + 1, 2 + 3, ..., then halves, so that the order is the same for every vector width.
template <class T>
class Sums {
 public:
  static constexpr int64_t kPairs = kSumVectors / 2;
  Sums() {
    for (V& s : sums_) s = hn::Zero(kFloats);
  }
  HWY_INLINE void add(int64_t k, VectorPair terms, Whole) {
    sums_[2 * k] = hn::Add(sums_[2 * k], terms.a);
    sums_[2 * k + 1] = hn::Add(sums_[2 * k + 1], terms.b);
  }
  HWY_INLINE void add(int64_t k, VectorPair terms, Part part) {
    add(k, keep_two<T>(terms, part), Whole{});
  }
  HWY_INLINE float total() {
    if constexpr (sizeof(T) == sizeof(bf16)) {
      V pairs[kPairs];
      for (int64_t k = 0; k < kPairs; ++k) pairs[k] = hn::Add(sums_[2 * k], sums_[2 * k + 1]);
      return add_lanes(pairs);
    } else {
      return add_lanes(sums_);
    }
  }

 private:
  V sums_[kSumVectors];
};

// Calls f(k, i, Whole or Part) for the pairs of vectors of [0, n), whose terms go to pair k of the
// sums.
template <class F>
HWY_INLINE void for_sums(int64_t n, F f) {
  constexpr int64_t kPairs = kSumVectors / 2;
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int64_t k = 0; k < kPairs; ++k) f(k, i + k * 2 * kLanes, Whole{});
  }
  for (int64_t k = 0; k < kPairs && i < n; ++k, i += 2 * kLanes) {
    if (i + 2 * kLanes <= n) {
      f(k, i, Whole{});
    } else {
      f(k, i, Part{n - i});
    }
  }
}

// As sum_of, but f(i, Whole or Part) returns the terms of the pair of vectors at i in load_pair's
// order for T.
template <class T, class F>
HWY_INLINE float sum_of_twos(int64_t n, F f) {
  Sums<T> sums;
  for_sums(n, [&](int64_t k, int64_t i, auto part) { sums.add(k, f(i, part), part); });
  return sums.total();
}

struct TwoTerms {
  VectorPair a, b;
};
struct TwoSums {
  float a, b;
};
// Two sums, each as sum_of_twos computes it.
template <class T, class F>
HWY_INLINE TwoSums two_sums_of_twos(int64_t n, F f) {
  Sums<T> a, b;
  for_sums(n, [&](int64_t k, int64_t i, auto part) {
    const TwoTerms terms = f(i, part);
    a.add(k, terms.a, part);
    b.add(k, terms.b, part);
  });
  return {a.total(), b.total()};
}

// v * 2^n for integral n. Exact, except that a result below the smallest normal number is rounded
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

// v 2^floor(y).
HWY_INLINE V scale_by_floor(V v, V y) {
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_scalef_ps(v.raw, y.raw)};
#else
  return scale_by_power(v, hn::Floor(y));
#endif
}

// r + r^2 / 2 + r^3 / 6 ... = e^r - 1, for |r| < 1/2 ln 2 or 1/32 ln 2.
HWY_INLINE V exp_less_one(V r) {
  V q = set(0.5f);
  if constexpr (kLanes >= 8) {
    q = hn::MulAdd(r, set(0.166666672f), q);
  } else {
    V p = hn::MulAdd(r, set(0.00139262135f), set(0.00836320297f));
    p = hn::MulAdd(p, r, set(0.0416665544f));
    p = hn::MulAdd(p, r, set(0.166665768f));
    q = hn::MulAdd(p, r, q);
  }
  return hn::MulAdd(hn::Mul(r, r), q, r);
}

// 2^(i / 16) for i = the lowest four bits of each word.
HWY_INLINE V sixteenth_powers_of_two(V words) {
  alignas(64) static constexpr float kPowers[16] = {
      1.0f,        1.04427378f, 1.09050773f, 1.13878863f, 1.18920711f, 1.24185781f,
      1.29683955f, 1.35425555f, 1.41421356f, 1.47682615f, 1.54221083f, 1.61049033f,
      1.68179283f, 1.75625216f, 1.83400809f, 1.91520656f};
  const auto bits = hn::BitCast(Words(), words);
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_permutexvar_ps(bits.raw, _mm512_load_ps(kPowers))};
#else
  const auto index = hn::IndicesFromVec(kFloats, hn::And(bits, hn::Set(Words(), 7u)));
  const V low = hn::TableLookupLanes(hn::Load(kFloats, kPowers), index);
  const V high = hn::TableLookupLanes(hn::Load(kFloats, kPowers + 8), index);
  const auto in_high = hn::Ne(hn::And(bits, hn::Set(Words(), 8u)), hn::Zero(Words()));
  return hn::IfThenElse(hn::RebindMask(kFloats, in_high), high, low);
#endif
}

// e^x for x up to 90, within 1.1 ulp (of the smallest subnormal if the result is below the smallest
// normal number); 0 below -104, infinity above 88.73, NaN for NaN. e^x = 2^n e^r. n is a multiple
// of 1/16 if vectors can hold a table (Tang, 1989), else an integer.
HWY_INLINE V exp_up_to_90(V x) {
  x = hn::Max(set(-105.0f), x);
  constexpr bool kTable = kLanes >= 8;
  constexpr float kRounder = kTable ? 0x1.8p19f : 0x1.8p23f;  // unit in its last place is that of n
  const V rounded = hn::MulAdd(x, set(1.44269504f), set(kRounder));
  const V n = hn::Sub(rounded, set(kRounder));
  V r = hn::NegMulAdd(n, set(0.693145752f), x);
  r = hn::NegMulAdd(n, set(1.42860677e-6f), r);
  const V above_one = exp_less_one(r);
  if constexpr (!kTable) return scale_by_power(hn::Add(above_one, set(1.0f)), n);
  const V power = sixteenth_powers_of_two(rounded);
  return scale_by_floor(hn::MulAdd(power, above_one, power), n);
}

HWY_INLINE V exp(V x) { return exp_up_to_90(hn::Min(set(90.0f), x)); }

// y - floor(y); 0 if y is infinite.
HWY_INLINE V above_floor(V y) {
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_reduce_ps(y.raw, 0x09)};
#else
  return hn::Sub(y, hn::Floor(y));
#endif
}

// 2^y for results that are stored as bf16, within 2.7e-6, a 700th of half a bf16 step: the
// polynomial of degree 4 with the smallest relative error on [0, 1], times 2^floor(y). 0 below
// -150, infinity above 128, NaN for NaN.
HWY_INLINE V exp2_for_bf16(V y) {
#if HWY_TARGET != HWY_AVX3
  y = hn::Min(set(129.0f), hn::Max(set(-152.0f), y));
#endif
  const V f = above_floor(y);
  V p = hn::MulAdd(f, set(0.013534168f), set(0.05201146f));
  p = hn::MulAdd(p, f, set(0.24144275f));
  p = hn::MulAdd(p, f, set(0.69300383f));
  p = hn::MulAdd(p, f, set(1.0000026f));
  return scale_by_floor(p, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
