// A rank that others wait for is named in the log while the run continues.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "base/error.h"
#include "comm/doing.h"
#include "dist/launch.h"
#include "dist/ranks.h"
#include "text.h"

namespace megatron::testing {
namespace {

using comm::Group;
using comm::WaitLimits;

constexpr double kNotice = 0.2, kSilent = 1.0;  // seconds; notices after 0.2, 0.4 and 0.8
constexpr double kLong = 30;                    // limit of a call

// Log of three ranks that are threads, of which rank 1 comes late.
std::string log_of(const WaitLimits& limits, const std::function<void(Group&)>& silent_rank) {
  ::testing::internal::CaptureStderr();
  std::string failure;
  try {
    comm::run_ranks(
        3,
        [&](Group& world) {
          Runtime runtime({DeviceKind::reference, 0}, 1);
          world.doing()->step(7);
          world.doing()->phase("backward");
          if (world.rank() == 1) silent_rank(world);
          Tensor t = make(runtime, {1}, DType::f32, {1.0});
          world.all_reduce(t, comm::Reduce::sum, runtime.stream(), "grads").wait(runtime.stream());
          EXPECT_EQ(to_doubles(t), std::vector<double>{3.0});
          pause(kNotice);  // long enough for the end of the wait to be noticed
        },
        limits);
  } catch (const Error& error) {
    failure = error.what();
  }
  return ::testing::internal::GetCapturedStderr() + failure;
}

void sleep_in_forward(Group& world) {
  world.doing()->phase("forward");
  world.doing()->layer("decoder.3.mlp");
  pause(kSilent);
}

TEST(Waiting, ForARankIsLoggedAndTheRunGoesOn) {
  const std::string text = log_of({kLong, kNotice}, sleep_in_forward);
  expect_contains(text, {"warning rank ",
                         " s for rank 1 in all_reduce 'grads' (call 1 of "
                         "'world', 4 bytes of f32, sum) (step 7, backward), and 1 more wait",
                         "rank 1: step 7, forward, layer decoder.3.mlp; in no call so far",
                         "The run continues; it is aborted if a call takes 30 s "
                         "(--distributed-timeout-minutes)",
                         "info the wait for rank 1 ended after "});
  const size_t notices = count(text, "has waited");
  EXPECT_GE(notices, 1u);
  EXPECT_LE(notices, 6u) << text;  // out of a hundred checks
  EXPECT_EQ(count(text, "ended after"), 1u) << text;
}

TEST(Waiting, ForWhatMayTakeLongIsNoWarning) {
  const std::string text = log_of({kLong, kNotice}, [](Group& world) {
    world.doing()->phase("save", true);
    pause(2 * kNotice);
  });
  expect_contains(text,
                  {"info rank ", "rank 1: step 7, save; in no call so far (this may take long)"});
  EXPECT_EQ(count(text, "warning"), 0u) << text;
}

TEST(Waiting, IsNotLoggedWhereTheRunAsksForNone) {
  EXPECT_EQ(log_of({kLong, 0}, sleep_in_forward), "");
  const std::string any_time = log_of({0, kNotice}, sleep_in_forward);
  expect_contains(any_time, {"has waited", "The run continues, with no timeout", "ended after"});
}

TEST(Waiting, IsLoggedBeforeTheRunEnds) {
  const std::string text = log_of({3 * kNotice, kNotice}, sleep_in_forward);
  const size_t notice = text.find("has waited"), end = text.find("the ranks make no progress");
  ASSERT_NE(notice, text.npos) << text;
  ASSERT_NE(end, text.npos) << text;
  EXPECT_LT(notice, end);
}

class WaitingProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_mpi()) GTEST_SKIP() << kNoMpi;
  }
};

TEST_F(WaitingProcesses, ForOneThatIsSilentGoOnWhenItComes) {
  const Launched run = launch(3, this_program(), "--scenario=silent-for-a-while", 20);
  EXPECT_EQ(run.code, 0) << run.text;
  expect_contains(
      run.text,
      {"s for rank 1 in all_reduce 'grads' (call 1 of 'dp', 8 bytes of f32, sum)",
       "rank 1: forward, layer attention; in no call for", "the wait for rank 1 ended after"});
  // Both other ranks wait. One of them logs at 0.3, 0.6, 1.2 s and so on.
  EXPECT_LE(count(run.text, "has waited"), 6u) << run.text;
  EXPECT_EQ(count(run.text, "ended after"), 1u) << run.text;
}

TEST_F(WaitingProcesses, ForOneThatIsStoppedGoOnWhenItIsContinued) {
  const Launched run = launch(2, this_program(), "--scenario=stopped-for-a-while", 20);
  EXPECT_EQ(run.code, 0) << run.text;
  expect_contains(run.text, {"s for rank 1 in all_reduce 'grads'", "rank 1: does not respond",
                             "the wait for rank 1 ended after"});
}

TEST_F(WaitingProcesses, ForOneThatNeverComesEndWithAReport) {
  const Launched run = launch(2, this_program(), "--scenario=silent-for-ever", 20);
  EXPECT_EQ(run.code, 2) << run.text;
  const size_t notice = run.text.find("has waited"),
               end = run.text.find("the ranks make no progress");
  ASSERT_NE(notice, run.text.npos) << run.text;
  ASSERT_NE(end, run.text.npos) << run.text;
  EXPECT_LT(notice, end);
  expect_contains(run.text, {"the timeout is 1 s", "rank 1 has not arrived"});
}

}  // namespace
}  // namespace megatron::testing
