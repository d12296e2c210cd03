// Formulas of kernels/quantize.h on the bits of f32, for CPUs and GPUs.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/quantize.h"

namespace megatron::kernels {

inline constexpr uint32_t kFloatExponent = 0x7f800000, kFloatFraction = 0x007fffff;
inline constexpr float kLargestFloat = std::bit_cast<float>(kFloatExponent - 1);

// The bits of f32 that describe a format.
struct LowFormatBits {
  uint32_t lowest;       // exponent of the smallest normal number, in place
  uint32_t to_rounder;   // added to an exponent in place: 2^23 times the spacing of its numbers
  uint32_t to_inverse;   // an exponent in place subtracted from it: the inverse of the spacing
  int mantissa_shift;    // from a mantissa of f32 to one of the format
  uint32_t normal_bias;  // shifted bits of a normal number less its code
  float smallest_normal, largest;
  uint32_t sign, nan;

  explicit constexpr LowFormatBits(LowFormat format) : LowFormatBits(facts_of(format)) {}
  explicit constexpr LowFormatBits(const LowFormatFacts& f)
      : lowest(static_cast<uint32_t>(f.lowest_exponent() + 127) << 23),
        to_rounder(static_cast<uint32_t>(23 - f.mantissa_bits) << 23),
        to_inverse(static_cast<uint32_t>(254 + f.mantissa_bits) << 23),
        mantissa_shift(23 - f.mantissa_bits),
        normal_bias(static_cast<uint32_t>(f.lowest_exponent() + 126) << f.mantissa_bits),
        smallest_normal(power_of_two(f.lowest_exponent())),
        largest(f.largest),
        sign(f.sign),
        nan(f.nan) {}

  // |x| rounded to a number of the format, ties to even, at most the largest. Adding 2^23 times the
  // spacing leaves no bits below it. NaN: the largest.
  constexpr float rounded(float size) const {
    const float most = size < largest ? size : largest;
    const uint32_t exponent = std::bit_cast<uint32_t>(most) & kFloatExponent;
    const auto rounder = std::bit_cast<float>((exponent > lowest ? exponent : lowest) + to_rounder);
    return (most + rounder) - rounder;
  }
  // |x| rounded to a neighbour, up if chance < its share of the way from the lower one.
  constexpr float rounded_by_chance(float size, float chance) const {
    const float most = size < largest ? size : largest;
    const uint32_t bits = std::bit_cast<uint32_t>(most) & kFloatExponent,
                   exponent = bits > lowest ? bits : lowest;
    const float t = most * std::bit_cast<float>(to_inverse - exponent);  // below 4
    const auto whole = static_cast<float>(static_cast<int>(t));
    return (whole + (chance < t - whole ? 1.0F : 0.0F)) *
           std::bit_cast<float>(exponent + to_rounder - (23U << 23));
  }
  // The code of a rounded |x|.
  constexpr uint32_t code_of(float size) const {
    const bool small = size < smallest_normal;
    const uint32_t bits = std::bit_cast<uint32_t>(small ? size + smallest_normal : size);
    return (bits >> mantissa_shift) - normal_bias - (small ? 1U << (23 - mantissa_shift) : 0U);
  }
};

// A block's stored scale and factor; x times `multiplier` / `divisor` is rounded.
struct BlockFactors {
  float multiplier = 1, divisor = 1, factor = 1;
  uint32_t code = 0;  // of e8m0 or e4m3
};

constexpr BlockFactors e8m0_factors(LowFormat format, float amax, bool up) {
  const uint32_t bits = std::bit_cast<uint32_t>(amax),
                 most = std::bit_cast<uint32_t>(facts_of(format).largest);
  int code = static_cast<int>(bits >> 23) - static_cast<int>(most >> 23) + 127;
  if (up && (bits & kFloatFraction) > (most & kFloatFraction)) ++code;
  if (bits == kFloatExponent) code = 254;
  if (code < 0) code = 0;
  return {.multiplier = power_of_two(127 - code),
          .factor = power_of_two(code - 127),
          .code = static_cast<uint32_t>(code)};
}

constexpr BlockFactors power_factors(LowFormat format, float amax) {
  if (amax == 0 || std::bit_cast<uint32_t>(amax) >= kFloatExponent) return {};
  const float quotient = facts_of(format).largest / amax;
  const uint32_t bits =
      std::bit_cast<uint32_t>(quotient < kLargestFloat ? quotient : kLargestFloat);
  const auto multiplier = std::bit_cast<float>(bits & kFloatExponent);
  return {.multiplier = multiplier, .factor = 1 / multiplier};
}

constexpr BlockFactors fp4_factors(float amax, float scale, bool quotient) {
  constexpr LowFormatBits kE4m3(LowFormat::e4m3);
  if (amax == 0) return {.multiplier = 0, .factor = 0};
  const float s = kE4m3.rounded(quotient ? amax / 6 / scale : amax * (scale * (1.0F / 6)));
  BlockFactors made{.factor = s, .code = kE4m3.code_of(s)};
  if (s == 0) {
    made.multiplier = 0;
  } else if (quotient) {
    made.divisor = s * scale;
  } else {
    const float inverse = 1 / (s * (1 / scale));
    made.multiplier = inverse < kLargestFloat ? inverse : kLargestFloat;
  }
  return made;
}

// scale: of the tensor, if the rule has one.
constexpr BlockFactors block_factors(BlockScale rule, LowFormat format, float amax, float scale) {
  switch (rule) {
    case BlockScale::given: return {.multiplier = scale};
    case BlockScale::power_of_two: return power_factors(format, amax);
    case BlockScale::e8m0: return e8m0_factors(format, amax, true);
    case BlockScale::e8m0_floor: return e8m0_factors(format, amax, false);
    case BlockScale::nvfp4: return fp4_factors(amax, scale, false);
    case BlockScale::nvfp4_quotient: break;
  }
  return fp4_factors(amax, scale, true);
}

// The scale of a tensor by TensorScaleArgs; before: its value so far.
constexpr float scale_of_tensor(float largest, float power, float amax, bool delayed,
                                float before) {
  if (!(amax > 0) || std::bit_cast<uint32_t>(amax) >= kFloatExponent) return delayed ? before : 1;
  const float scale = largest / amax * power;
  return scale < kLargestFloat ? scale : kLargestFloat;
}

}  // namespace megatron::kernels
