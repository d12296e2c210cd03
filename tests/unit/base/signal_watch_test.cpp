#include "base/signal_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>

namespace megatron {
namespace {

constexpr std::array kWatched = {SIGTERM, SIGUSR1};

TEST(SignalWatch, ASignalWaitsUntilItIsTaken) {
  SignalWatch watch(kWatched);
  EXPECT_EQ(watch.caught(), std::nullopt);
  kill(getpid(), SIGUSR1);
  EXPECT_EQ(watch.caught(), SIGUSR1);
  EXPECT_EQ(watch.caught(), SIGUSR1);
}

// It came when the work was over already: another rank reported it, or it was the last step.
TEST(SignalWatch, WhatIsNotTakenEndsNothing) {
  {
    const SignalWatch watch(kWatched);
    kill(getpid(), SIGTERM);
    kill(getpid(), SIGUSR1);
  }
  SUCCEED();
}

TEST(SignalWatch, TheSecondSignalActsAtOnce) {
  EXPECT_EXIT(
      {
        SignalWatch watch(kWatched);
        kill(getpid(), SIGTERM);
        if (watch.caught() == SIGTERM) kill(getpid(), SIGTERM);
        _exit(0);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace megatron
