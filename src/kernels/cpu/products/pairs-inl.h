// Vectors of f32 as words of products (kernels/cpu/products/tiles.h), included once per instruction
// set after kernels/cpu/simd-inl.h.
#if defined(MEGATRON_KERNELS_CPU_PAIRS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_PAIRS_INL_H
#undef MEGATRON_KERNELS_CPU_PAIRS_INL_H
#else
#define MEGATRON_KERNELS_CPU_PAIRS_INL_H
#endif

#include <array>

#include "kernels/cpu/products/tiles.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// The bits of bf16(v) in the upper half of each word, rounded to nearest even. With bf16 products,
// a NaN comes from bf16 operands or from arithmetic. Its low bits are zero then, so the addition
// does not overflow and it stays a NaN.
HWY_INLINE hn::Vec<Words> upper_half(V v) {
  const auto bits = hn::BitCast(Words(), v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(Words(), 1u));
  return hn::Add(hn::Add(bits, hn::Set(Words(), 0x7fffu)), odd);
}

// Stores two vectors of upper halves as the pairs of 2 kLanes consecutive elements.
HWY_INLINE void store_pairs(hn::Vec<Words> first, hn::Vec<Words> second, uint32_t* to) {
#if HWY_TARGET == HWY_AVX3
  alignas(64) static constexpr auto kUpper = [] {
    std::array<uint16_t, 32> places{};
    for (size_t i = 0; i < 32; ++i) places[i] = static_cast<uint16_t>(2 * i + 1);
    return places;
  }();
  _mm512_storeu_si512(
      to, _mm512_permutex2var_epi16(first.raw, _mm512_load_si512(kUpper.data()), second.raw));
#else
  uint16_t* halves = reinterpret_cast<uint16_t*>(to);
  hn::StoreU(hn::TruncateTo(Halves(), hn::ShiftRight<16>(first)), Halves(), halves);
  hn::StoreU(hn::TruncateTo(Halves(), hn::ShiftRight<16>(second)), Halves(), halves + kLanes);
#endif
}

// Stores two vectors of upper halves as pairs of an even and an odd row.
HWY_INLINE void store_row_pair(hn::Vec<Words> even, hn::Vec<Words> odd, uint32_t* words) {
  const hn::Repartition<uint16_t, Words> halves;
  const auto low = hn::BitCast(halves, hn::ShiftRight<16>(even));
  hn::StoreU(hn::BitCast(Words(), hn::OddEven(hn::BitCast(halves, odd), low)), Words(), words);
}

// e^y, less accurate if it will be rounded to pairs of bf16.
template <WordKind kind>
HWY_INLINE V power_of_e(V y) {
  if constexpr (kind == WordKind::f32) return exp_up_to_90(y);
  return exp2_for_bf16(hn::Mul(y, set(1.44269504f)));
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
