#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/philox.h"

namespace megatron {
namespace {

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::f64), 8);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::u8), 1);
  EXPECT_EQ(name(DType::bf16), "bf16");
  EXPECT_EQ(name(DType::i64), "i64");
  EXPECT_TRUE(is_floating(DType::f16));
  EXPECT_FALSE(is_floating(DType::i32));
}

struct Format {
  int mantissa_bits, smallest_exponent, largest_exponent;
};
constexpr Format kBf16{7, -126, 127};
constexpr Format kF16{10, -14, 15};

// Value of a bit pattern by the format's definition, in fp64.
double value_of(uint16_t bits, Format f) {
  const int exponent_bits = 15 - f.mantissa_bits;
  const int exponent = (bits >> f.mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, f.smallest_exponent - f.mantissa_bits);
  return sign * std::ldexp((1 << f.mantissa_bits) + mantissa,
                           exponent - 1 + f.smallest_exponent - f.mantissa_bits);
}

// x rounded to nearest, ties to even, by scaling the last place to 1 in fp64.
double rounded(float x, Format f) {
  if (!std::isfinite(x) || x == 0) return x;
  const int exponent = std::max(std::ilogb(static_cast<double>(x)), f.smallest_exponent);
  const double place = std::ldexp(1.0, exponent - f.mantissa_bits);
  const double y =
      std::copysign(std::nearbyint(std::abs(static_cast<double>(x)) / place) * place, x);
  return std::abs(y) < std::ldexp(1.0, f.largest_exponent + 1)
             ? y
             : std::copysign(std::numeric_limits<double>::infinity(), x);
}

template <class T>
void expect_all_patterns(Format f) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    T t;
    t.bits = static_cast<uint16_t>(bits);
    const double expected = value_of(t.bits, f);
    const float got = static_cast<float>(t);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(T(got)))) << bits;
      ASSERT_EQ(T(got).bits & 0x8000, t.bits & 0x8000) << bits;
    } else {
      ASSERT_EQ(got, expected) << bits;
      ASSERT_EQ(T(got).bits, t.bits) << bits;
    }
  }
}

template <class T>
void expect_rounding(float x, Format f) {
  const float got = static_cast<float>(T(x));
  if (std::isnan(x)) {
    ASSERT_TRUE(std::isnan(got)) << x;
    return;
  }
  ASSERT_EQ(got, rounded(x, f)) << x;
  ASSERT_EQ(std::signbit(got), std::signbit(x)) << x;
}

// The neighbours of every value and of every midpoint between two values, and random floats of all
// magnitudes.
template <class T>
void expect_rounding_everywhere(Format f) {
  for (uint32_t bits = 0; bits < 65535; ++bits) {
    const double a = value_of(static_cast<uint16_t>(bits), f),
                 b = value_of(static_cast<uint16_t>(bits + 1), f);
    if (!std::isfinite(a)) continue;
    const double next =
        std::isfinite(b) ? b : std::copysign(std::ldexp(1.0, f.largest_exponent + 1), a);
    for (const double centre : {a, (a + next) / 2}) {
      const auto x = static_cast<float>(centre);
      for (const float y : {std::nextafter(x, -INFINITY), x, std::nextafter(x, INFINITY)}) {
        expect_rounding<T>(y, f);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
  const RandomStream random(1, "dtype");
  for (uint64_t i = 0; i < 200'000; ++i) {
    expect_rounding<T>(std::bit_cast<float>(static_cast<uint32_t>(random.bits(i))), f);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(Bf16, EveryPatternGoesThereAndBack) { expect_all_patterns<bf16>(kBf16); }
TEST(F16, EveryPatternGoesThereAndBack) { expect_all_patterns<f16>(kF16); }
TEST(Bf16, RoundsToNearestTiesToEven) { expect_rounding_everywhere<bf16>(kBf16); }
TEST(F16, RoundsToNearestTiesToEven) { expect_rounding_everywhere<f16>(kF16); }

TEST(Bf16, ANanWhosePayloadIsBelowTheCutStaysANan) {
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0xffffffffu)))));
}

}  // namespace
}  // namespace megatron
