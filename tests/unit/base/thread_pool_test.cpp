#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"

namespace megatron {
namespace {

class ThreadPools : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPools, ::testing::Values(1, 2, 3, 4));

TEST_P(ThreadPools, RunsEachBlockOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.size(), GetParam());
  for (const int64_t blocks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<int> calls(
        static_cast<size_t>(blocks));  // not atomic: the sanitizer sees a block taken twice
    std::atomic<bool> thread_good = true;
    pool.parallel_for(blocks, [&](int64_t block, int thread) {
      ++calls[static_cast<size_t>(block)];
      if (thread < 0 || thread >= pool.size()) thread_good = false;
    });
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(blocks), 1));
    EXPECT_TRUE(thread_good);
  }
}

TEST_P(ThreadPools, SharesRunEachBlockOnceAndInOrder) {
  ThreadPool pool(GetParam());
  for (const int64_t blocks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<int> calls(static_cast<size_t>(blocks));
    std::vector<std::vector<int64_t>> taken(static_cast<size_t>(GetParam()));  // by thread
    pool.parallel_shares(blocks, [&](int64_t block, int thread) {
      ++calls[static_cast<size_t>(block)];
      taken[static_cast<size_t>(thread)].push_back(block);
    });
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(blocks), 1));
    for (const std::vector<int64_t>& of_thread : taken) {
      int64_t turns = 0;  // moves from a later share to an earlier one
      for (size_t i = 1; i < of_thread.size(); ++i) turns += of_thread[i] < of_thread[i - 1];
      EXPECT_LE(turns, 1);
    }
  }
}

// While a thread is busy with one block, other threads take the remaining blocks of its share.
TEST_P(ThreadPools, SharesAreHelpedWith) {
  ThreadPool pool(GetParam());
  constexpr int64_t kBlocks = 40;
  std::atomic<int64_t> done = 0;
  pool.parallel_shares(kBlocks, [&](int64_t block, int) {
    if (block == 0 && GetParam() > 1) {
      const auto begin = std::chrono::steady_clock::now();
      while (done < kBlocks - 1 &&
             std::chrono::steady_clock::now() - begin < std::chrono::seconds(10)) {
        std::this_thread::yield();
      }
      EXPECT_EQ(done, kBlocks - 1);
    }
    ++done;
  });
  EXPECT_EQ(done, kBlocks);
}

TEST_P(ThreadPools, EachThreadHasItsNumberToItself) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> sums(static_cast<size_t>(GetParam()));  // not atomic
  int64_t expected = 0;
  for (int round = 0; round < 300; ++round) {
    pool.parallel_for(
        20, [&](int64_t block, int thread) { sums[static_cast<size_t>(thread)] += block; });
    expected += 190;
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), expected);
}

TEST_P(ThreadPools, ManySmallJobsAfterEachOther) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(5);
  for (int round = 0; round < 5000; ++round) {
    pool.parallel_for(5, [&](int64_t block, int) { values[static_cast<size_t>(block)] += round; });
  }
  EXPECT_EQ(values, std::vector<int64_t>(5, 5000 * 4999 / 2));
}

TEST_P(ThreadPools, WakesFromSleep) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> calls = 0;
    pool.parallel_for(100, [&](int64_t, int) { ++calls; });
    EXPECT_EQ(calls, 100);
  }
}

TEST_P(ThreadPools, AllThreadsWorkAtOnce) {
  ThreadPool pool(GetParam());
  std::atomic<int> inside = 0;
  pool.parallel_for(GetParam(), [&](int64_t, int) {  // a block ends only when every thread has one
    ++inside;
    const auto begin = std::chrono::steady_clock::now();
    while (inside < GetParam() &&
           std::chrono::steady_clock::now() - begin < std::chrono::seconds(10)) {
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(inside, GetParam());
}

TEST_P(ThreadPools, RethrowsAndStaysUsable) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(pool.parallel_for(100,
                                   [&](int64_t block, int) {
                                     if (block == 37) fail("block {}", block);
                                   }),
                 Error);
    EXPECT_THROW(pool.parallel_for(100, [](int64_t, int) { throw 1; }), int);
    EXPECT_THROW(pool.parallel_shares(100, [](int64_t, int) { throw 1; }), int);
    EXPECT_THROW(pool.parallel_for(1, [](int64_t, int) { throw std::bad_alloc(); }),
                 std::bad_alloc);
    std::atomic<int> calls = 0;
    pool.parallel_for(10, [&](int64_t, int) { ++calls; });
    ASSERT_EQ(calls, 10);
  }
}

TEST_P(ThreadPools, NestedCallsRunOnTheirOwnThread) {
  ThreadPool pool(GetParam());
  std::vector<int> calls(8 * 16);
  std::atomic<bool> same = true;
  pool.parallel_for(8, [&](int64_t outer, int outer_thread) {
    const std::thread::id id = std::this_thread::get_id();
    pool.parallel_for(16, [&](int64_t inner, int inner_thread) {
      ++calls[static_cast<size_t>(outer * 16 + inner)];
      if (inner_thread != outer_thread || std::this_thread::get_id() != id) same = false;
    });
  });
  EXPECT_EQ(calls, std::vector<int>(8 * 16, 1));
  EXPECT_TRUE(same);
}

TEST_P(ThreadPools, ExceptionsPassNestedCalls) {
  ThreadPool pool(GetParam());
  EXPECT_THROW(
      pool.parallel_for(
          8, [&](int64_t, int) { pool.parallel_for(2, [](int64_t, int) { fail("inner"); }); }),
      Error);
  std::atomic<int> calls = 0;
  pool.parallel_for(10, [&](int64_t, int) { ++calls; });
  EXPECT_EQ(calls, 10);
}

TEST(ThreadPool, CallersFromSeveralThreadsTakeTurns) {
  ThreadPool pool(3);
  std::vector<int64_t> scratch(3),
      totals(3);  // by thread number: must not be shared by two jobs at a time
  std::vector<std::thread> callers;
  for (size_t c = 0; c < 3; ++c) {
    callers.emplace_back([&, c] {
      for (int round = 0; round < 200; ++round) {
        std::atomic<int64_t> calls = 0;
        pool.parallel_for(8, [&](int64_t, int thread) {
          ++scratch[static_cast<size_t>(thread)];
          ++calls;
        });
        totals[c] += calls;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(totals, std::vector<int64_t>(3, 1600));
  EXPECT_EQ(std::accumulate(scratch.begin(), scratch.end(), int64_t{0}), 4800);
}

TEST(ThreadPool, APoolInsideAnotherPool) {
  ThreadPool outer(2), inner(2);
  std::atomic<int> calls = 0;
  outer.parallel_for(4,
                     [&](int64_t, int) { inner.parallel_for(8, [&](int64_t, int) { ++calls; }); });
  EXPECT_EQ(calls, 32);
}

TEST(ThreadPool, StartsAndStops) {
  for (int round = 0; round < 50; ++round) ThreadPool pool(1 + round % 4);
}

TEST(ThreadPool, RefusesNoThreads) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(-3), Error);
}

}  // namespace
}  // namespace megatron
