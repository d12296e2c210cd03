#include "comm/wait_notices.h"

#include <gtest/gtest.h>

#include <vector>

namespace megatron::comm {
namespace {

using Say = WaitNotices::Say;

constexpr double kPause = 0.25;  // seconds between two polls

// Polls from one time to another; longest(t) is how long the oldest call has been open at time t.
template <class F>
std::vector<double> notices(WaitNotices& waits, double from, double to, F longest) {
  std::vector<double> times;
  for (double t = from; t < to; t += kPause)
    if (waits.look(t, longest(t)) == Say::waits) times.push_back(t);
  return times;
}

TEST(WaitNotices, OfOneLongWaitAreFurtherAndFurtherApart) {
  WaitNotices waits(WaitLimits(0, 30));
  const std::vector<double> times = notices(waits, 0, 1500, [](double t) { return t; });
  const std::vector<double> wanted = {30, 60, 120, 240, 480, 960, 1440};
  ASSERT_EQ(times.size(), wanted.size());
  for (size_t i = 0; i < times.size(); ++i) EXPECT_NEAR(times[i], wanted[i], 1) << i;
  EXPECT_EQ(waits.look(1500, 0.1), Say::is_over);
  EXPECT_EQ(waits.look(1501, 0.1), Say::nothing);
}

TEST(WaitNotices, OfARunThatIsSlowInEachStepAreFew) {
  WaitNotices waits(WaitLimits(0, 30));
  // Every 40 s begin with a wait of 35 s.
  const auto slow = [](double t) {
    const double place = t - 40 * static_cast<int>(t / 40);
    return place < 35 ? place : 0;
  };
  EXPECT_LE(notices(waits, 0, 3600, slow).size(), 12u);
  const std::vector<double> after_a_quiet_time =
      notices(waits, 10000, 10100, [](double t) { return t - 10000; });
  EXPECT_EQ(waits.look(12000, 0), Say::is_over);
  ASSERT_GE(after_a_quiet_time.size(), 1u);
  EXPECT_EQ(waits.look(16000, 0), Say::nothing);  // earlier waits are forgotten
  EXPECT_NEAR(notices(waits, 16001, 16050, [](double t) { return t - 16001; }).at(0), 16031, 1);
}

TEST(WaitNotices, OfAnotherRankAreNotRepeated) {
  WaitNotices waits(WaitLimits(0, 30));
  waits.logged_elsewhere(29);
  EXPECT_EQ(notices(waits, 29, 58, [](double t) { return t; }).size(), 0u);
  EXPECT_EQ(waits.look(58, 0), Say::nothing) << "it has logged no wait that could be over";
}

TEST(WaitNotices, AreNoneWithoutATime) {
  WaitNotices waits(WaitLimits(600, 0));
  EXPECT_EQ(notices(waits, 0, 500, [](double t) { return t; }).size(), 0u);
}

}  // namespace
}  // namespace megatron::comm
