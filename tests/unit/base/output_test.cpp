#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/tolerances.h"

namespace megatron {
namespace {

TEST(Errors, CheckThrowsWithTheTextAndAssertNamesThePlace) {
  const int limit = 3;
  EXPECT_NO_THROW(MG_CHECK(limit == 3, "unused"));
  try {
    MG_CHECK(limit > 4, "limit is {}; give {} or more", limit, 5);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "limit is 3; give 5 or more");
  }
  try {
    MG_ASSERT(limit == 4);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("limit == 4"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("output_test.cpp:"), std::string::npos);
  }
}

TEST(Log, GoesToStandardErrorWithoutColourOutsideATerminal) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  log::info("step {} {{}}", 7);
  log::write(log::Level::warning, "braces {} and %s stay");
  log::write(log::Level::debug, "hidden");
  log::set_level(log::Level::error);
  log::warning("hidden too");
  log::error("bad");
  log::set_level(log::Level::info);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_NE(text.find(" info step 7 {}\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" warning braces {} and %s stay\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" error bad\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("hidden"), std::string::npos) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
}

TEST(Log, LinesOfThreadsStayWhole) {
  ::testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i) log::info("{}", std::string(100, 'x'));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = ::testing::internal::GetCapturedStderr();
  size_t lines = 0;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != text.npos;
       begin = end + 1, ++lines) {
    ASSERT_EQ(text.substr(begin, end - begin).substr(8), " info " + std::string(100, 'x'));
  }
  EXPECT_EQ(lines, 200u);
}

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(42.4), "42s");
  EXPECT_EQ(format_duration(59.7), "1m00s");
  EXPECT_EQ(format_duration(185), "3m05s");
  EXPECT_EQ(format_duration(3599.8), "1h00m");
  EXPECT_EQ(format_duration(7620), "2h07m");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(NAN), "?");
  EXPECT_EQ(format_duration(INFINITY), "?");
}

TEST(Format, BytesAndCounts) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1.4e6), "1.4 MB");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(999'960), "1.0 MB");
  EXPECT_EQ(format_bytes(5e21), "5000.0 EB");
  EXPECT_EQ(format_count(812), "812");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(0.35), "0.35");
  EXPECT_EQ(format_count(999.7), "1.0k");
  EXPECT_EQ(format_count(1300), "1.3k");
  EXPECT_EQ(format_count(4'230'000), "4.2M");
  EXPECT_EQ(format_count(-1300), "-1.3k");
}

TEST(Tolerance, MetricIsRelativeWithAFloor) {
  using tolerance::tensor_metric;
  EXPECT_DOUBLE_EQ(tensor_metric(2e-6, 2, 0.1, 100), 1e-6);
  EXPECT_DOUBLE_EQ(tensor_metric(1e-9, 1e-12, 0.5, 400), 1e-9 / (1e-3 * 0.5 * 20));
  EXPECT_EQ(tensor_metric(0, 0, 0, 10), 0);
  EXPECT_EQ(tensor_metric(1, 0, 0, 10), INFINITY);
  EXPECT_TRUE(std::isnan(tensor_metric(NAN, 1, 1, 1)));
  EXPECT_TRUE(std::isnan(tensor_metric(1, NAN, 1, 1)));
  EXPECT_TRUE(std::isnan(tensor_metric(1, 1, NAN, 1)));
}

}  // namespace
}  // namespace megatron
