#include "base/signal_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <future>
#include <thread>

namespace megatron {
namespace {

using std::chrono::milliseconds;

constexpr std::array kWatched = {SIGTERM, SIGUSR1};

TEST(SignalWatch, ASignalWaitsUntilItIsTaken) {
  SignalWatch watch(kWatched);
  EXPECT_EQ(watch.caught(), std::nullopt);
  kill(getpid(), SIGUSR1);
  EXPECT_EQ(watch.caught(), SIGUSR1);
  kill(getpid(), SIGTERM);
  EXPECT_EQ(watch.caught(), SIGUSR1);
}

// The signal arrives after the end of the work: another rank reported it, or it was the last step.
TEST(SignalWatch, WhatIsNotTakenEndsNothing) {
  {
    const SignalWatch watch(kWatched);
    kill(getpid(), SIGTERM);
    kill(getpid(), SIGUSR1);
  }
  SUCCEED();
}

TEST(SignalWatch, TheFirstIsToldWhileNobodyAsks) {
  std::promise<int> told;
  SignalWatch watch(kWatched, [&](int signal) { told.set_value(signal); });
  kill(getpid(), SIGTERM);
  EXPECT_EQ(told.get_future().get(), SIGTERM);
}

// A signal sent to a process and to its group, or forwarded by a launcher, counts as one.
TEST(SignalWatch, SignalsCloseTogetherAreOne) {
  SignalWatch watch(kWatched);
  for (const int signal : {SIGTERM, SIGUSR1, SIGTERM}) {
    kill(getpid(), signal);
    std::this_thread::sleep_for(milliseconds(70));  // longer than the watch's interval
    EXPECT_EQ(watch.caught(), SIGTERM);
  }
}

// A second signal acts even if the program does not poll, as in the middle of a long step.
TEST(SignalWatch, ALaterSignalActsAtOnce) {
  EXPECT_EXIT(
      {
        const SignalWatch watch(kWatched, {}, milliseconds(1));
        kill(getpid(), SIGTERM);
        std::this_thread::sleep_for(milliseconds(300));
        kill(getpid(), SIGUSR1);
        std::this_thread::sleep_for(milliseconds(5000));
        _exit(0);
      },
      ::testing::KilledBySignal(SIGUSR1), "");
}

}  // namespace
}  // namespace megatron
