// Rotary tables on the host have rows for the existing texts, whatever number of positions a model
// claims.
#include "nn/rotary.h"

#include <gtest/gtest.h>

#include <cmath>

namespace megatron::nn {
namespace {

constexpr int64_t kClaimed = 1 << 27, kHead = 4;

// The cosine of a pair's angle at a text's last position.
double last_cosine(const RotaryTables& tables, int64_t length, int64_t pair) {
  const RotaryTable table = tables.of(length);
  const int64_t row = std::min(length, table.cos.size(0)) - 1;
  return to_doubles(table.cos.slice(0, row, 1)).at(static_cast<size_t>(pair));
}

TEST(RotaryTables, GrowOnTheHostWithTheTexts) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const RotaryConfig config;
  const RotaryTables tables(runtime, DType::f64, kClaimed, kHead, config);
  EXPECT_LE(tables.of(10).cos.size(0), 1 << 17);
  EXPECT_EQ(tables.of(200'000).cos.size(0), 1 << 18);
  EXPECT_EQ(tables.of(150'000).cos.size(0), 1 << 18);
  EXPECT_LE(tables.of(10).cos.size(0), 1 << 17);
  for (const int64_t length : {10, 131'072, 131'073, 200'000, 300'000})
    EXPECT_EQ(last_cosine(tables, length, 1), std::cos(static_cast<double>(length - 1) * 0.01));
}

TEST(RotaryTables, GrowUpToTheOriginalContextOfDynamicScaling) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const RotaryConfig config{
      .scaling = RopeScaling::dynamic, .factor = 2, .original_positions = kClaimed / 2};
  const RotaryTables tables(runtime, DType::f64, kClaimed, kHead, config);
  for (const int64_t length : {10, 200'000, 10, 300'000, 150'000}) {
    EXPECT_LE(tables.of(length).cos.size(0), 1 << 19);
    EXPECT_EQ(last_cosine(tables, length, 1), std::cos(static_cast<double>(length - 1) * 0.01));
  }
}

TEST(RotaryTables, HaveAllPositionsOfAShortModel) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const RotaryTables tables(runtime, DType::f64, 100, kHead, {});
  EXPECT_EQ(tables.of(10).cos.size(0), 100);
  EXPECT_EQ(tables.of(100).cos.raw(), tables.of(10).cos.raw());
}

}  // namespace
}  // namespace megatron::nn
