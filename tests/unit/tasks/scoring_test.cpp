// Text comparison and metrics over many examples. Expected values are those of
// lm-evaluation-harness 0.4.13.
#include <gtest/gtest.h>

#include <cmath>

#include "tasks/extraction.h"
#include "tasks/metrics.h"
#include "unit/tasks/support.h"

namespace megatron::testing {
namespace {

using tasks::extracted;
using tasks::Filter;

TEST(Extraction, OfGsm8k) {
  const Filter strict{"strict", R"(#### (\-?[0-9\.\,]+))"};
  EXPECT_EQ(extracted(strict, "so\n#### 1,234.\n#### 5"), "1,234.");
  EXPECT_EQ(extracted(strict, "#### -3"), "-3");
  EXPECT_EQ(extracted(strict, "the answer is 7"), "[invalid]");
  const Filter flexible{"flexible", R"((-?[$0-9.,]{2,})|(-?[0-9]+))", -1};
  EXPECT_EQ(extracted(flexible, "12 apples for $3.50"), "$3.50");
  EXPECT_EQ(extracted(flexible, "first 10, then 7"), "7");
  EXPECT_EQ(extracted(flexible, "none"), "[invalid]");
}

TEST(Extraction, GroupsAndPlaces) {
  EXPECT_EQ(extracted({"all", "a+ "}, "b aa c"), "aa") << "white space is stripped";
  EXPECT_EQ(extracted({"second", "[0-9]+", 1}, "1 22 333"), "22");
  EXPECT_EQ(extracted({"third last", "[0-9]+", -3}, "1 22 333"), "1");
  EXPECT_EQ(extracted({"too many", "[0-9]+", 3}, "1 22 333"), "[invalid]");
  EXPECT_EQ(extracted({"one group", "x(y)?"}, "x"), "");
  EXPECT_EQ(extracted({"two groups", "(a)?(b)?x"}, "x"), "[invalid]");
  EXPECT_EQ(extracted({"empty matches", "é*", 2}, "zé"), "") << "before z, é, at the end";
}

TEST(Extraction, WhatDoesNotCount) {
  tasks::Task task{.kind = tasks::TaskKind::generation};
  EXPECT_FALSE(is_match(task, "Yes", "yes"));
  task.ignore_case = true;
  EXPECT_TRUE(is_match(task, "Yes É", "yes é"));
  task.regexes_to_ignore = {",", R"(\$)", "(?s).*#### ", R"(\.$)"};
  EXPECT_TRUE(is_match(task, "$1,200.", "3 * 400 = 1200\n#### 1200"));
  EXPECT_TRUE(is_match(task, "1,200", "#### 1\n#### 1200"));
  EXPECT_FALSE(is_match(task, "12", "3 * 400 = 12\n#### 1200"));
  EXPECT_FALSE(is_match(task, "12.0", "12"));
}

TEST(Metrics, MeansAndTheirErrors) {
  const double right[] = {1, 0, 0, 1, 1};
  EXPECT_EQ(tasks::mean_of(right).value, 0.6);
  EXPECT_DOUBLE_EQ(tasks::mean_of(right).standard_error, 0.24494897427831783);
  EXPECT_TRUE(std::isnan(tasks::mean_of(std::span(right, 1)).standard_error));
  EXPECT_EQ(tasks::mean_of(std::span(right, 1)).value, 1);
}

TEST(Metrics, PerplexityAndItsBootstrap) {
  const double log_likelihoods[] = {-0.5, -3.25, -1.0, -7.75, -0.125};
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const tasks::Estimate found = tasks::perplexity_of(log_likelihoods, pool);
    EXPECT_DOUBLE_EQ(found.value, 12.490895263606808);
    EXPECT_NEAR(found.standard_error, 77.61288594990818, 1e-10);
  }
}

TEST(Metrics, PooledBySize) {
  const tasks::Part parts[] = {{{0.5, 0.1}, 10}, {{0.8, 0.2}, 5}};
  EXPECT_DOUBLE_EQ(tasks::pooled(parts).value, 0.6);
  EXPECT_DOUBLE_EQ(tasks::pooled(parts).standard_error, 0.09336995618478527);
  const tasks::Part single[] = {{{0.5, NAN}, 1}, {{1.0, 0.2}, 5}};
  EXPECT_FALSE(std::isnan(tasks::pooled(single).standard_error));
}

TEST(Metrics, TheFirstOfTheLargest) {
  const double values[] = {-3, -1, -2, -1};
  EXPECT_EQ(tasks::largest(values), 1u);
}

}  // namespace
}  // namespace megatron::testing
