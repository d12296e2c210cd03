// Floating-point formats of 4 and 8 bits, element by element, as they are defined in OCP 8-bit
// Floating Point 1.0 (2023) and OCP Microscaling Formats 1.0 (2023).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace megatron {

// Code: sign, exponent, mantissa, from the highest bit down; e2m1 in the lower half of a byte.
//   e4m3  bias 7,  largest 448;   no infinities, NaN 0x7f and 0xff
//   e5m2  bias 15, largest 57344; infinities 0x7c and 0xfc, NaN above them
//   e2m1  bias 1,  largest 6;     neither infinities nor NaN
enum class LowFormat : uint8_t { e4m3, e5m2, e2m1 };

struct LowFormatFacts {
  int mantissa_bits, bias, codes;  // codes: of positive numbers, NaN and infinity not included
  uint8_t sign, nan;               // nan: code that NaN is encoded as
  float largest;

  constexpr int lowest_exponent() const { return 1 - bias; }  // of normal numbers
};

constexpr LowFormatFacts facts_of(LowFormat format) {
  switch (format) {
    case LowFormat::e4m3: return {3, 7, 127, 0x80, 0x7f, 448};
    case LowFormat::e5m2: return {2, 15, 124, 0x80, 0x7f, 57344};
    case LowFormat::e2m1: break;
  }
  return {1, 1, 8, 0x08, 0x07, 6};
}

// 2^n for n in [-149, 127].
constexpr float power_of_two(int n) {
  return std::bit_cast<float>(n < -126 ? uint32_t{1} << (n + 149)
                                       : static_cast<uint32_t>(n + 127) << 23);
}

constexpr float decode(LowFormat format, uint8_t code) {
  const LowFormatFacts f = facts_of(format);
  const int magnitude = code & (f.sign - 1), fraction = magnitude & ((1 << f.mantissa_bits) - 1),
            exponent = magnitude >> f.mantissa_bits;
  float value = static_cast<float>(fraction) * power_of_two(f.lowest_exponent() - f.mantissa_bits);
  if (exponent > 0)
    value = static_cast<float>((1 << f.mantissa_bits) + fraction) *
            power_of_two(exponent - f.bias - f.mantissa_bits);
  if (magnitude >= f.codes)
    value = format == LowFormat::e5m2 && fraction == 0 ? std::numeric_limits<float>::infinity()
                                                       : std::numeric_limits<float>::quiet_NaN();
  return (code & f.sign) != 0 ? -value : value;
}

// The code of the nearest number, ties to the even code; beyond the largest number, infinity
// included, that of the largest. value: float or double.
template <class C>
constexpr uint8_t encode(LowFormat format, C value) {
  const LowFormatFacts f = facts_of(format);
  if (value != value) return f.nan;
  const bool negative = value < 0 || (value == 0 && std::numeric_limits<C>::infinity() / value < 0);
  const C size = value < 0 ? -value : value;
  int low = 0, high = f.codes - 1;  // of the neighbours
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (decode(format, static_cast<uint8_t>(middle)) <= size ? low : high) = middle;
  }
  const C between = (static_cast<C>(decode(format, static_cast<uint8_t>(low))) +
                     static_cast<C>(decode(format, static_cast<uint8_t>(high)))) /
                    2;
  const int code = size > between || (size == between && high % 2 == 0) ? high : low;
  return static_cast<uint8_t>(code | (negative ? f.sign : 0));
}

// e8m0, the type of scales: 2^(code - 127); 0xff is NaN.
constexpr float e8m0_value(uint8_t code) {
  return code == 0xff ? std::numeric_limits<float>::quiet_NaN() : power_of_two(code - 127);
}

}  // namespace megatron
