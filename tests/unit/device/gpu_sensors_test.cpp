#include "device/gpu_sensors.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(GpuReadings, AreDescribedInOneLine) {
  const GpuReading readings[] = {{1755, 1980, 412, 700, 55}, {1980, 1980, 690.4, 700, 61}};
  EXPECT_EQ(describe(readings),
            "SM clock 1755 to 1980 MHz (most 1980), power 412 to 690 W (limit 700 W), "
            "61 C at the end");
}

// A sensor that is missing or fails once is omitted, not read as 0.
TEST(GpuReadings, WhatIsNotKnownIsLeftOut) {
  const GpuReading failed_once[] = {{0, 1980, 0, 0, 0}, {1980, 1980, 0, 0, 0}, {1755, 0, 0, 0, 0}};
  EXPECT_EQ(describe(failed_once), "SM clock 1755 to 1980 MHz");
  EXPECT_EQ(describe(std::vector<GpuReading>(2)),
            "NVIDIA's management library does not report clocks or power");
}

}  // namespace
}  // namespace megatron
