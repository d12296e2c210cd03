// Ranks that wait for a call that never comes: the run ends soon and reports the reason.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "comm/async.h"
#include "comm/doing.h"
#include "dist/launch.h"
#include "dist/ranks.h"
#include "hang_limit.h"
#include "text.h"

namespace megatron::testing {
namespace {

using comm::Group;
using comm::Reduce;
using RankBody = std::function<void(Group& world, Runtime& runtime)>;

constexpr double kLimit = 0.4;  // seconds
constexpr double kNoHang = 8;   // bound for ranks that are ended at once, on a busy machine
constexpr double kSoon = testing::kHangSeconds;

void reduce_ones(Group& group, Runtime& runtime, std::string_view call, int64_t n = 2) {
  Tensor t = make(runtime, {n}, DType::f32, std::vector<double>(static_cast<size_t>(n), 1.0));
  group.all_reduce(t, Reduce::sum, runtime.stream(), call).wait(runtime.stream());
}

// Error text of ranks that are threads.
std::string end_of(int ranks, const RankBody& body, double limit = kLimit) {
  const double start = now_seconds();
  std::string text = "(nothing was thrown)";
  try {
    comm::run_ranks(
        ranks,
        [&](Group& world) {
          Runtime runtime({DeviceKind::reference, 0}, 1);
          body(world, runtime);
        },
        limit);
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_LT(now_seconds() - start, kSoon) << text;
  return text;
}

TEST(Hang, OfARankThatComesTooLateIsToldWithWhatAllDo) {
  std::atomic<int> reported = 0;
  const std::string text = end_of(3, [&](Group& world, Runtime& runtime) {
    world.doing()->step(17);
    world.doing()->phase(world.rank() == 2 ? "data" : "backward");
    world.doing()->layer(fmt::format("decoder.{}", world.rank()));
    world.doing()->micro_batch(5);
    reduce_ones(world, runtime, "first");
    if (world.rank() == 2) pause(1.5 * kLimit);
    try {
      reduce_ones(world, runtime, "second", 3);
    } catch (const Error& error) {
      expect_contains(error.what(), {"'second' was aborted", "rank 2 has not arrived"});
      ++reported;
      throw;
    }
  });
  EXPECT_EQ(reported, 3);
  expect_contains(
      text, {"all_reduce 'second' (call 2 of 'world', 12 bytes of f32, sum) for 0.",
             "the timeout is "
             "0.4",
             "rank 0: step 17, backward, layer decoder.0, micro-batch 5; in all_reduce 'second'",
             "rank 1: step 17, backward, layer decoder.1", "rank 2 has not arrived",
             "rank 2: step 17, data, layer decoder.2, micro-batch 5; in no call for",
             "after all_reduce 'first' (call 1 of 'world')"});
}

TEST(Hang, InASubGroupNamesItAndWhoIsElsewhere) {
  const std::string text = end_of(4, [](Group& world, Runtime& runtime) {
    const auto pair = world.split(world.rank() / 2, world.rank(), 2);
    pair->set_name(world.rank() < 2 ? "tp" : "other tp");
    reduce_ones(*pair, runtime, "good");
    // Rank 1 waits in the world for a barrier that rank 0 never reaches.
    if (world.rank() == 0) reduce_ones(*pair, runtime, "bad");
    world.barrier("step");
  });
  expect_contains(text, {"in all_reduce 'bad' (call 2 of 'tp', 8 bytes of f32, sum) for",
                         "rank 1 has not arrived", "in barrier 'step' (call 2 of 'world') for",
                         "rank 0 has not arrived", "rank 3: nothing known; in barrier 'step'"});
}

TEST(Hang, OfAMessageNamesItsSender) {
  const std::string text = end_of(2, [](Group& world, Runtime& runtime) {
    Tensor t = make(runtime, {2}, DType::f32, {1.0, 2.0});
    if (world.rank() == 1) {
      world.send(t, 0, runtime.stream(), "forward");
      pause(1.5 * kLimit);
      world.barrier("too late");
    } else {
      world.recv(t, 1, runtime.stream(), "forward");
      world.recv(t, 1, runtime.stream(), "forward");
    }
  });
  expect_contains(text, {"recv 'forward' (message 2 of 'world', 8 bytes of f32)",
                         "rank 1 has not arrived", "rank 1: nothing known; in no call so far"});
}

TEST(Hang, OfACallBesideNamesIt) {
  const std::string text = end_of(2, [](Group& world, Runtime& runtime) {
    const auto group = comm::async(world.split(0, world.rank(), 2));
    group->set_name("gradients");
    reduce_ones(*group, runtime, "bucket 0");
    if (world.rank() == 0) {
      reduce_ones(*group, runtime, "bucket 1");
    } else {
      world.barrier("never");
    }
  });
  expect_contains(text, {"all_reduce 'bucket 1' (call 2 of 'gradients'", "barrier 'never'"});
}

TEST(Hang, IsNoneWhereCallsAreOnlySlow) {
  EXPECT_EQ(end_of(2,
                   [](Group& world, Runtime& runtime) {
                     for (int i = 0; i < 4; ++i) {
                       if (world.rank() == 0) pause(0.5 * kLimit);
                       reduce_ones(world, runtime, "slow");
                     }
                   }),
            "(nothing was thrown)");
}

TEST(Skipped, CallIsAMismatchWithNumbers) {
  const std::string text = end_of(
      2,
      [](Group& world, Runtime& runtime) {
        reduce_ones(world, runtime, "first");
        if (world.rank() == 0) reduce_ones(world, runtime, "second");
        reduce_ones(world, runtime, "third");
      },
      kNoHang);
  expect_contains(text,
                  {"rank 0 calls all_reduce 'second' (call 2 of 'world', 8 bytes of f32, sum)",
                   "rank 1 calls all_reduce 'third' (call 2 of 'world', 8 bytes of f32, sum)"});
}

TEST(Mismatched, MessagesHaveNumbers) {
  const std::string text = end_of(
      2,
      [](Group& world, Runtime& runtime) {
        Tensor t = make(runtime, {2}, DType::f32, {1.0, 2.0});
        if (world.rank() == 0) {
          world.send(t, 1, runtime.stream(), "forward 1");
          world.send(t, 1, runtime.stream(), "forward 2");
        } else {
          world.recv(t, 0, runtime.stream(), "forward 1");
          world.recv(t, 0, runtime.stream(), "forward 3");
        }
      },
      kNoHang);
  expect_contains(text, {"rank 0 sent 'forward 2' (message 2 of 'world', 8 bytes of f32)",
                         "rank 1 waits for 'forward 3' (message 2 of 'world', 8 bytes of f32)"});
}

TEST(Ended, RankIsNoticedInAnyGroup) {
  for (const bool async : {false, true}) {
    const std::string text = end_of(
        3,
        [&](Group& world, Runtime& runtime) {
          auto group = world.split(world.rank() == 0 ? 0 : 1, 0, world.rank() == 0 ? 1 : 2);
          group->set_name("dp");
          if (async) group = comm::async(std::move(group));
          if (world.rank() == 1) reduce_ones(*group, runtime, "gone");
        },
        kNoHang);
    expect_contains(text, {"rank 2 has exited while rank 1 is waiting for it in all_reduce 'gone' "
                           "(call 1 of 'dp', 8 bytes of f32, sum)"});
  }
}

TEST(Failed, RankSaysWhatItDid) {
  std::atomic<bool> reported = false;
  const std::string text = end_of(
      2,
      [&](Group& world, Runtime&) {
        if (world.rank() == 1) {
          world.doing()->phase("save");
          fail("disk 7 is full");
        }
        try {
          world.barrier("step");
        } catch (const Error& error) {
          expect_contains(error.what(), {"rank 1 failed (save): disk 7 is full"});
          reported = true;
          throw;
        }
      },
      kNoHang);
  EXPECT_EQ(text, "rank 1 failed (save): disk 7 is full");
  EXPECT_TRUE(reported);
}

// A thread that never enters a call cannot be woken, so the process ends.
class Threads : public ::testing::Test {
 protected:
  static Launched scenario(const std::string& name) {
    return run_line(this_program() + " --scenario=" + name, testing::kHangSeconds);
  }
};

TEST_F(Threads, OfWhichOneSleepsForEver) {
  const double start = now_seconds();
  const Launched run = scenario("threads-sleep");
  EXPECT_EQ(run.code, 2) << run.text;
  EXPECT_LT(now_seconds() - start, kSoon);
  expect_contains(run.text, {"the ranks make no progress", "rank 1 has not arrived",
                             "rank 1: forward, layer attention; in no call so far"});
  EXPECT_EQ(run.text.find("make no progress"), run.text.rfind("make no progress")) << run.text;
}

TEST_F(Threads, OfWhichOneSleepsForEverWhenAnotherFails) {
  const Launched run = scenario("threads-fail-and-sleep");
  EXPECT_EQ(run.code, 2) << run.text;
  expect_contains(run.text, {"rank 0 failed: disk 7 is full", "still running",
                             "rank 1: forward, layer attention; in no call so far"});
}

// MPICH's launcher ends ranks with SIGKILL, which a process cannot report.
bool launcher_sends_sigterm() { return std::string(MEGATRON_MPI) == "openmpi"; }

class ProcessHang : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_mpi()) GTEST_SKIP() << kNoMpi;
    start_ = now_seconds();
  }
  Launched scenario(int ranks, const std::string& name) {
    const Launched run = launch(ranks, this_program(), "--scenario=" + name, testing::kHangSeconds);
    seconds_ = now_seconds() - start_;
    return run;
  }
  static size_t count(const std::string& text, std::string_view part) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
    return n;
  }

  double start_ = 0, seconds_ = 0;
};

TEST_F(ProcessHang, OfARankThatSleepsForEver) {
  const Launched run = scenario(3, "sleep");
  EXPECT_EQ(run.code, 2) << run.text;
  EXPECT_LT(seconds_, kSoon);
  expect_contains(
      run.text,
      {"all_reduce 'grads' (call 1 of 'dp', 8 bytes of f32, sum) for", "the timeout is 0.5 s",
       "rank 1 has not arrived", "rank 0: backward, micro-batch 3; in all_reduce 'grads'",
       "rank 1: forward, layer attention; in no call for", "rank 2: backward"});
  EXPECT_EQ(count(run.text, "make no progress"), 1u) << run.text;
}

TEST_F(ProcessHang, OfAMessageThatIsNeverSent) {
  const Launched run = scenario(2, "never-sent");
  EXPECT_EQ(run.code, 2) << run.text;
  expect_contains(run.text,
                  {"recv 'forward' (message 1 of 'world', 8 bytes of f32) for",
                   "rank 1 has not arrived", "rank 1: nothing known; in recv 'backward'"});
}

TEST_F(ProcessHang, BesideNamesTheGroup) {
  const Launched run = scenario(2, "async-hang");
  EXPECT_EQ(run.code, 2) << run.text;
  expect_contains(run.text, {"all_reduce 'bucket' (call 1 of 'gradients'",
                             "rank 1 has not "
                             "arrived"});
}

TEST_F(ProcessHang, ASkippedCallIsAMismatchWithNumbers) {
  const Launched run = scenario(2, "skip");
  EXPECT_EQ(run.code, 7) << run.text;
  EXPECT_LT(seconds_, kSoon);
  expect_contains(run.text,
                  {"rank 0 calls all_reduce 'second' (call 2 of 'world', 8 bytes of f32, sum)",
                   "rank 1 calls barrier 'third' (call 2 of 'world')"});
}

TEST_F(ProcessHang, ARankThatEndedIsNoticedInASubGroupAndBeside) {
  for (const char* const name : {"end-in-pair", "end-async"}) {
    start_ = now_seconds();
    const Launched run = scenario(3, name);
    EXPECT_EQ(run.code, 7) << run.text;
    EXPECT_LT(seconds_, kSoon);
    expect_contains(run.text, {"rank 2 has exited while rank 0 is waiting for it in all_reduce "
                               "'gone' (call 1 of 'pair', 8 bytes of f32, sum)"});
  }
}

TEST_F(ProcessHang, ARankThatIsKilledEndsTheOthersEachWithItsReport) {
  const Launched run = scenario(3, "killed");
  EXPECT_NE(run.code, 0);
  EXPECT_NE(run.code, 124);
  EXPECT_LT(seconds_, kSoon);
  if (!launcher_sends_sigterm()) return;
  expect_contains(run.text, {"rank 0 was terminated by SIGTERM: backward; in all_reduce 'grads'",
                             "rank 2 was terminated by SIGTERM: backward; in all_reduce 'grads'"});
}

TEST_F(ProcessHang, ARankThatThrowsEndsTheOthersEachWithItsReport) {
  const Launched run = scenario(3, "throws");
  EXPECT_EQ(run.code, 7) << run.text;
  EXPECT_LT(seconds_, kSoon);
  expect_contains(run.text, {"error: disk 7 is full"});
  if (!launcher_sends_sigterm()) return;
  expect_contains(run.text, {"rank 1 was terminated by SIGTERM: backward; in all_reduce 'grads'",
                             "rank 2 was terminated by SIGTERM: backward; in all_reduce 'grads'"});
}

TEST_F(ProcessHang, ARankThatThrowsDoesNotWaitForItsCallBeside) {
  const Launched run = scenario(2, "throws-async");
  EXPECT_EQ(run.code, 7) << run.text;
  EXPECT_LT(seconds_, kSoon);
  expect_contains(run.text, {"error: disk 7 is full"});
  if (!launcher_sends_sigterm()) return;
  expect_contains(run.text, {"rank 1 was terminated by SIGTERM: forward"});
}

// The watch of --exit-signal-handler blocks SIGTERM in this way.
TEST_F(ProcessHang, SigtermThatSomebodyElseWaitsForIsToldOnceACallIsStuck) {
  if (!launcher_sends_sigterm()) GTEST_SKIP() << "the launcher ends ranks with SIGKILL";
  const Launched run = scenario(3, "killed-signals-watched");
  EXPECT_NE(run.code, 0);
  expect_contains(run.text, {"rank 0 received SIGTERM", "rank 2 received SIGTERM"});
}

TEST_F(ProcessHang, SigtermOfTheLauncherIsToldByEachRankSoon) {
  if (!launcher_sends_sigterm()) GTEST_SKIP() << "the launcher ends ranks with SIGKILL";
  const Launched run = scenario(2, "launcher-ended");
  EXPECT_NE(run.code, 0);
  EXPECT_LT(seconds_, kSoon);
  expect_contains(run.text, {"rank 0 was terminated by SIGTERM: step 3, forward",
                             "rank 1 was terminated by SIGTERM: step 3, forward"});
}

TEST_F(ProcessHang, NoRankSaysAnythingOfARunThatEndsWell) {
  const Launched run = scenario(3, "late-end");
  EXPECT_EQ(run.code, 0) << run.text;
  EXPECT_EQ(run.text, "") << run.text;
}

}  // namespace
}  // namespace megatron::testing
