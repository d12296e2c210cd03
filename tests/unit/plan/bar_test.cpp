#include "plan/bar.h"

#include <gtest/gtest.h>

namespace megatron::plan {
namespace {

TEST(Bar, CellsAreInProportionAndAllTaken) {
  EXPECT_EQ(stacked_bar({{"a", 1}, {"b", 1}, {"c", 2}}, 4, 8, "."), "aabbcccc");
  EXPECT_EQ(stacked_bar({{"a", 1}, {"b", 1}, {"c", 1}}, 3, 8, "."), "aaabbbcc");
  EXPECT_EQ(stacked_bar({{"a", 1}}, 4, 8, "."), "aa......");
  EXPECT_EQ(stacked_bar({{"a", 0}, {"b", 7}}, 7, 3, "."), "bbb");
  EXPECT_EQ(stacked_bar({{"a", 0}}, 0, 3, "."), "...");
  EXPECT_EQ(stacked_bar({{"a", INT64_MAX / 2}, {"b", INT64_MAX / 2}}, INT64_MAX - 1, 4, "."),
            "aabb");
}

TEST(Bar, TheSmallestPartMayVanish) {
  EXPECT_EQ(stacked_bar({{"a", 1}, {"b", 1000}}, 1001, 10, "."), "bbbbbbbbbb");
}

}  // namespace
}  // namespace megatron::plan
