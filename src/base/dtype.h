// Element types, and the exact conversions between the 16-bit formats and fp32.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace megatron {

enum class DType : uint8_t { f64, f32, bf16, f16, i64, i32, i16, i8, u16, u8 };

int64_t size_of(DType type);        // bytes of one element
std::string_view name(DType type);  // "f32", "bf16", ...
bool is_floating(DType type);

// bfloat16: the upper half of an fp32. Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

// IEEE binary16. Rounds to nearest, ties to even; overflows to infinity; subnormals are kept.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
  explicit f16(float value);
  explicit operator float() const;
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::i16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};

}  // namespace megatron
