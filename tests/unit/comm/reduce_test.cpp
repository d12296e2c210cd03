#include "comm/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace megatron::comm {
namespace {

template <class T>
std::vector<T> reduced(const std::vector<std::vector<T>>& inputs, Reduce op, int64_t cut) {
  std::vector<T> out(inputs[0].size());
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  void* const to = out.data();
  const auto n = static_cast<int64_t>(out.size());
  reduce(sources, {&to, 1}, DTypeOf<T>::value, op, 0, cut);
  reduce(sources, {&to, 1}, DTypeOf<T>::value, op, cut, n);
  return out;
}

TEST(Reduce, AddsInTheOrderOfTheSources) {
  // (1e8 + 1) - 1e8 is 0 in f32; any other order gives 1.
  EXPECT_EQ(reduced<float>({{1e8f}, {1.0f}, {-1e8f}}, Reduce::sum, 0)[0], 0.0f);
  EXPECT_EQ(reduced<float>({{1e8f}, {-1e8f}, {1.0f}}, Reduce::sum, 0)[0], 1.0f);
}

TEST(Reduce, RoundsHalfPrecisionOnce) {
  // 256 + 1 is 256 in bf16 (ties to even). If each sum is rounded, three ones are lost; if only the
  // last is rounded, the result is 260.
  const std::vector<std::vector<bf16>> inputs = {
      {bf16(256.0f)}, {bf16(1.0f)}, {bf16(1.0f)}, {bf16(1.0f)}};
  EXPECT_EQ(static_cast<float>(reduced(inputs, Reduce::sum, 0)[0]), 260.0f);
  const std::vector<std::vector<f16>> halves = {{f16(2048.0f)}, {f16(1.0f)}, {f16(1.0f)}};
  EXPECT_EQ(static_cast<float>(reduced(halves, Reduce::sum, 0)[0]), 2050.0f);
}

TEST(Reduce, IntegersAreExactAndWrap) {
  const int64_t big = (int64_t{1} << 53) + 1;
  EXPECT_EQ(reduced<int64_t>({{big}, {big}}, Reduce::sum, 0)[0], 2 * big);
  EXPECT_EQ(reduced<int64_t>({{INT64_MAX}, {1}}, Reduce::sum, 0)[0], INT64_MIN);
  EXPECT_EQ(reduced<int8_t>({{100}, {100}}, Reduce::sum, 0)[0], static_cast<int8_t>(-56));
  EXPECT_EQ(reduced<int8_t>({{-5}, {3}, {-7}}, Reduce::max, 0)[0], 3);
  EXPECT_EQ(reduced<uint16_t>({{60000}, {3}}, Reduce::max, 0)[0], 60000);
}

TEST(Reduce, MaximumWithNanIsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& inputs :
       {std::vector<std::vector<float>>{{nan}, {1.0f}}, {{1.0f}, {nan}}, {{1}, {nan}, {2}}}) {
    EXPECT_TRUE(std::isnan(reduced(inputs, Reduce::max, 0)[0]));
  }
}

TEST(Reduce, AnyCutGivesTheSameBits) {
  std::vector<std::vector<float>> inputs(3, std::vector<float>(1500));
  for (size_t r = 0; r < 3; ++r) {
    for (size_t i = 0; i < 1500; ++i)
      inputs[r][i] = std::sin(static_cast<float>(i * 7 + r * 31)) * 100.0f;
  }
  const std::vector<float> whole = reduced(inputs, Reduce::sum, 0);
  for (const int64_t cut : {1, 63, 512, 777, 1500})
    EXPECT_EQ(reduced(inputs, Reduce::sum, cut), whole);
  for (size_t i = 0; i < 1500; ++i)
    EXPECT_EQ(whole[i], (inputs[0][i] + inputs[1][i]) + inputs[2][i]);
}

}  // namespace
}  // namespace megatron::comm
