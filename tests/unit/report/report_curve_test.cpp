// Long series are thinned without losing a peak.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "report/curve.h"

namespace megatron::report {
namespace {

TEST(ReportCurve, KeepsEveryRowOfAShortSeries) {
  report::Curve curve(2, {1}, 100);
  for (int i = 0; i < 100; ++i) curve.add(std::vector<double>{1.0 * i, i == 7 ? kNone : 0.5});
  EXPECT_FALSE(curve.thinned());
  ASSERT_EQ(curve.column(0).size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(curve.column(0)[static_cast<size_t>(i)], i);
  EXPECT_TRUE(std::isnan(curve.column(1)[7]));
}

TEST(ReportCurve, KeepsExtremesOfALongOne) {
  constexpr int kRows = 100000;
  report::Curve curve(3, {1, 2}, 500);
  std::set<int> marked;
  for (int i = 0; i < kRows; ++i) {
    double a = std::sin(i * 0.001), b = 5;
    if (i % 9973 == 17) a = 100 + i, marked.insert(i);
    if (i % 8011 == 5) a = -100 - i, marked.insert(i);
    if (i % 7001 == 3) b = 1000 + i, marked.insert(i);
    if (i == 54321) b = kNone, marked.insert(i);
    curve.add(std::vector<double>{1.0 * i, a, b});
  }
  EXPECT_TRUE(curve.thinned());
  EXPECT_EQ(curve.seen(), kRows);
  const std::vector<double> x = curve.column(0);
  EXPECT_LE(x.size(), 502u);
  EXPECT_GE(x.size(), 150u);
  EXPECT_TRUE(std::is_sorted(x.begin(), x.end()));
  EXPECT_EQ(x.front(), 0);
  EXPECT_EQ(x.back(), kRows - 1);
  for (const int i : marked) EXPECT_TRUE(std::binary_search(x.begin(), x.end(), i)) << i;
}

TEST(ReportCurve, RowsAreKeptWholeAndMeansAreOfAllRows) {
  report::Curve curve(2, {1}, 20);
  double sum = 0;
  for (int i = 0; i < 4096; ++i) {
    curve.add(std::vector<double>{1.0 * i, 3.0 * i});
    sum += 3.0 * i;
  }
  const std::vector<double> x = curve.column(0), y = curve.column(1), means = curve.means(1);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], 3 * x[i]);
  double mean = 0;
  for (const double m : means) mean += m / static_cast<double>(means.size());
  EXPECT_NEAR(mean, sum / 4096, 1e-6);  // 4096 rows make buckets of one size
}

TEST(ReportCurve, TellsOfAnEmptySeries) {
  const report::Curve curve(1, {0}, 5);
  EXPECT_TRUE(curve.column(0).empty());
  EXPECT_TRUE(std::isnan(curve.last(0)));
  EXPECT_TRUE(std::isnan(curve.last_finite(0)));
}

TEST(ReportCurve, RemembersTheLastNumber) {
  report::Curve curve(1, {0}, 5);
  for (const double v : {1.0, 2.0, kNone}) curve.add(std::vector<double>{v});
  EXPECT_TRUE(std::isnan(curve.last(0)));
  EXPECT_EQ(curve.last_finite(0), 2);
}

}  // namespace
}  // namespace megatron::report
