// The layout matrix with every triple of settings.
#include <gtest/gtest.h>

#include <iostream>

#include "selftest/selftest.h"

namespace megatron::selftest {
namespace {

constexpr int kParts = 12;
class Triples : public ::testing::TestWithParam<int> {};

TEST_P(Triples, GiveWhatOneRankGives) {
  std::string text;
  const Summary summary = run({.layouts = 3, .part = GetParam(), .parts = kParts},
                              [&](std::string_view line) { text += line; });
  EXPECT_TRUE(summary.failed.empty()) << text;
  EXPECT_GE(summary.passed.size(), 10u);
  std::cout << text;
}

INSTANTIATE_TEST_SUITE_P(Rows, Triples, ::testing::Range(0, kParts));

}  // namespace
}  // namespace megatron::selftest
