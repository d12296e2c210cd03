// Collectives that overlap with their caller's compute.
#include "comm/async.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <new>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "comm/delaying.h"
#include "comm/traffic.h"
#include "dist/ranks.h"
#include "hang_limit.h"

namespace {

// Largest block requested since this was set to 0.
std::atomic<size_t> largest_block = 0;

}  // namespace

// Both forms are replaced, because the address sanitizer has its own nothrow form, which does not
// call malloc.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  size_t largest = largest_block.load(std::memory_order_relaxed);
  while (bytes > largest && !largest_block.compare_exchange_weak(largest, bytes)) continue;
  return std::malloc(bytes);
}
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (void* const block = ::operator new(bytes, std::nothrow)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }

namespace megatron {
namespace {

using comm::Delaying;
using comm::Group;
using comm::Reduce;
using comm::Work;
using testing::each_rank;
using testing::make;
using Milliseconds = Delaying::Duration;

std::unique_ptr<Group> beside_of(Group& world) {
  return comm::async(world.split(0, world.rank(), world.size()));
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

class Async : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Async, ::testing::Values(1, 2, 3, 4));

TEST_P(Async, CallsGiveWhatTheyGiveAlone) {
  const int ranks = GetParam();
  each_rank(ranks, [&](Group& world, Runtime& runtime) {
    const auto group = beside_of(world);
    EXPECT_EQ(group->rank(), world.rank());
    EXPECT_EQ(group->size(), ranks);
    Stream& stream = runtime.stream();
    const double me = world.rank() + 1, sum = ranks * (ranks + 1) / 2.0;
    const int next = (world.rank() + 1) % ranks, before = (world.rank() + ranks - 1) % ranks;
    const std::vector<int64_t> counts(static_cast<size_t>(ranks), 1);
    const auto filled = [&](int64_t n, double value) {
      return make(runtime, {n}, DType::f32, std::vector<double>(static_cast<size_t>(n), value));
    };
    Tensor reduced = filled(5, me), gathered = make(runtime, {ranks}, DType::f32),
           scattered = make(runtime, {1}, DType::f32), moved = make(runtime, {ranks}, DType::f32),
           root = filled(2, me), received = make(runtime, {3}, DType::f32);
    // All calls are in flight together.
    const std::vector<Work> works = {
        group->all_reduce(reduced, Reduce::sum, stream, "sum"),
        group->all_gather(filled(1, me), gathered, stream, "gather"),
        group->reduce_scatter(filled(ranks, me), scattered, Reduce::max, stream, "scatter"),
        group->all_to_all(filled(ranks, me), moved, counts, counts, stream, "rows"),
        group->broadcast(root, ranks - 1, stream, "root"),
        group->send(filled(3, me), next, stream, "ring"),
        group->recv(received, before, stream, "ring")};
    for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait(stream);
    for (const Work& work : works) {
      work.wait(stream);  // a second time
      EXPECT_TRUE(work.done.reached());
    }
    std::vector<double> all;
    for (int r = 0; r < ranks; ++r) all.push_back(r + 1);
    EXPECT_EQ(to_doubles(reduced), std::vector<double>(5, sum));
    EXPECT_EQ(to_doubles(gathered), all);
    EXPECT_EQ(to_doubles(scattered)[0], ranks);
    EXPECT_EQ(to_doubles(moved), all);
    EXPECT_EQ(to_doubles(root)[1], ranks);
    EXPECT_EQ(to_doubles(received)[2], before + 1);
    group->barrier("all here");
    const auto part = group->split(world.rank() % 2, 0, (ranks + 1 - world.rank() % 2) / 2);
    EXPECT_EQ(part->size(), (ranks + 1 - world.rank() % 2) / 2);
  });
}

TEST_P(Async, CallsRunInTheOrderInWhichTheyWereGiven) {
  const int ranks = GetParam();
  each_rank(ranks, [&](Group& world, Runtime& runtime) {
    const auto group = beside_of(world);
    Tensor t = make(runtime, {1}, DType::f64, {1.0});
    Work last;
    // The world's own calls continue meanwhile.
    Tensor other = make(runtime, {1}, DType::f64, {1.0});
    for (int i = 0; i < 30; ++i) {
      last = group->all_reduce(t, Reduce::sum, runtime.stream(), fmt::format("call {}", i));
      world.all_reduce(other, Reduce::max, runtime.stream(), "between");
    }
    last.wait(runtime.stream());
    double wanted = 1;
    for (int i = 0; i < 30; ++i) wanted *= ranks;
    EXPECT_EQ(to_doubles(t)[0], wanted);
  });
}

// Seconds that the slowest rank spends in calls on a link that delays each of them, overlapped with
// compute. The compute is a sleep, because with fewer cores than ranks only a sleep is certain to
// overlap.
double seconds_overlapped(Group& world, Runtime& runtime, int calls, Milliseconds delay) {
  const auto group =
      comm::async(std::make_unique<Delaying>(world.split(0, world.rank(), world.size()), delay));
  Tensor t = make(runtime, {1000}, DType::f32, std::vector<double>(1000, 1.0));
  const double start = now_seconds();
  std::vector<Work> works;
  for (int i = 0; i < calls; ++i) {
    works.push_back(group->all_reduce(t, Reduce::max, runtime.stream(), "gradients"));
    std::this_thread::sleep_for(delay);
  }
  for (const Work& work : works) work.wait(runtime.stream());
  const double seconds = now_seconds() - start;
  EXPECT_LT(group->seconds(), seconds) << "only what the caller waited is counted";
  Tensor slowest = make(runtime, {1}, DType::f64, {seconds});
  world.all_reduce(slowest, Reduce::max, runtime.stream(), "slowest");
  return to_doubles(slowest)[0];
}

// Delays grow until they outweigh the time that a busy machine adds to each call.
TEST(BesideOverlap, TakesLessThanSeventyPercentOfTheSum) {
  constexpr int kCalls = 10;
  each_rank(2, [&](Group& world, Runtime& runtime) {
    double share = 1;
    for (Milliseconds delay{20}; share >= 0.7 && delay.count() <= 1000; delay *= 3)
      share = seconds_overlapped(world, runtime, kCalls, delay) / (2e-3 * kCalls * delay.count());
    EXPECT_LT(share, 0.7);
  });
}

TEST(BesideFailure, OfACallComesOutOfItsWaitAndOfAllLater) {
  each_rank(2, [](Group& world, Runtime& runtime) {
    const auto group = beside_of(world);
    Tensor t = make(runtime, {2}, DType::f32, {1.0, 2.0});
    const Work good = group->all_reduce(t, Reduce::sum, runtime.stream(), "good");
    const Work bad = group->all_reduce(t, world.rank() == 0 ? Reduce::sum : Reduce::max,
                                       runtime.stream(), "bad");
    const Work after = group->all_reduce(t, Reduce::sum, runtime.stream(), "after");
    good.wait(runtime.stream());
    for (int i = 0; i < 2; ++i) {
      const std::string text = error_of([&] { bad.wait(runtime.stream()); });
      EXPECT_NE(text.find("all_reduce 'bad'"), std::string::npos) << text;
    }
    EXPECT_THROW(after.wait(runtime.stream()), Error);
    const Work last = group->all_reduce(t, Reduce::sum, runtime.stream(), "last");
    EXPECT_THROW(last.wait(runtime.stream()), Error);
    EXPECT_THROW(group->barrier("barrier"), Error);
    world.barrier("the world goes on");
  });
}

TEST(BesideFailure, OfAnotherRankWakesWhoWaits) {
  std::atomic<int> woken = 0;
  const double start = now_seconds();
  const std::string text = error_of([&] {
    each_rank(3, [&](Group& world, Runtime& runtime) {
      const auto group = beside_of(world);
      Tensor t = make(runtime, {1}, DType::f32, {1.0});
      if (world.rank() == 2) fail("disk 7 is full");
      const Work work = group->all_reduce(t, Reduce::sum, runtime.stream(), "never");
      const std::string given_up = error_of([&] { work.wait(runtime.stream()); });
      EXPECT_NE(given_up.find("disk 7 is full"), std::string::npos) << given_up;
      ++woken;
      fail("a consequence");
    });
  });
  EXPECT_EQ(text, "disk 7 is full");
  EXPECT_EQ(woken, 2);
  EXPECT_LT(now_seconds() - start, testing::kHangSeconds);
}

// The failing rank has a call in flight that the others will never join. The end of its group does
// not wait for that call, and the error reported is the failure itself.
TEST(BesideFailure, OfTheRankThatHasACallUnderWay) {
  const std::string text = error_of([] {
    each_rank(2, [](Group& world, Runtime& runtime) {
      const auto group = beside_of(world);
      Tensor t = make(runtime, {1}, DType::f32, {1.0});
      if (world.rank() == 0) {
        const Work work = group->all_reduce(t, Reduce::sum, runtime.stream(), "lonely");
        std::this_thread::sleep_for(Milliseconds(20));
        fail("disk 8 is full");
      }
      world.barrier("never");
    });
  });
  EXPECT_EQ(text, "disk 8 is full");
}

TEST(BesideFailure, OfARankThatEndedIsNoHang) {
  const std::string text = error_of([] {
    each_rank(2, [](Group& world, Runtime& runtime) {
      const auto group = beside_of(world);
      Tensor t = make(runtime, {1}, DType::f32, {1.0});
      if (world.rank() == 0)
        group->all_reduce(t, Reduce::sum, runtime.stream(), "gone").wait(runtime.stream());
    });
  });
  EXPECT_NE(text.find("rank 1 has exited"), std::string::npos) << text;
}

TEST(AsyncGroup, EndsWhatWasGivenBeforeItGoesAway) {
  each_rank(2, [](Group& world, Runtime& runtime) {
    Tensor t = make(runtime, {1}, DType::f32, {1.0});
    {
      const auto group =
          comm::async(std::make_unique<Delaying>(world.split(0, world.rank(), 2), Milliseconds(5)));
      for (int i = 0; i < 3; ++i)
        group->all_reduce(t, Reduce::sum, runtime.stream(), "not waited for");
    }
    EXPECT_EQ(to_doubles(t)[0], 8);
  });
}

TEST(AsyncGroup, OfRanksThatDoNotExistAndOnMetaCallsAtOnce) {
  Runtime runtime({DeviceKind::meta, 0}, 1);
  const auto group = comm::async(comm::simulated(3, 8));
  Tensor t = make(runtime, {4}, DType::f32);
  EXPECT_TRUE(group->all_reduce(t, Reduce::sum, runtime.stream(), "x").done.reached());
  EXPECT_TRUE(group->recv(t, 2, runtime.stream(), "x").done.reached());
  EXPECT_TRUE(group->immediate());
  each_rank(2, DeviceKind::meta, [](Group& world, Runtime& meta) {
    const auto pair = beside_of(world);
    Tensor all = make(meta, {8}, DType::f32), mine = make(meta, {4}, DType::f32);
    EXPECT_TRUE(pair->all_gather(mine, all, meta.stream(), "x").done.reached());
  });
}

struct Heard final : comm::TrafficListener {
  std::vector<std::string> calls;
  std::thread::id thread = std::this_thread::get_id();
  void communicated(const comm::Traffic& t) override {
    EXPECT_EQ(std::this_thread::get_id(), thread);
    calls.emplace_back(t.call);
  }
};

// A listener is only called by the thread that made its group.
TEST(AsyncGroup, IsObserved) {
  each_rank(2, [](Group& world, Runtime& runtime) {
    Heard heard;
    Tensor t = make(runtime, {1}, DType::f32, {1.0});
    {
      const auto observed_world = comm::observed(world, heard);
      const auto group = comm::async(observed_world->split(0, world.rank(), 2));
      const Work work = group->all_reduce(t, Reduce::sum, runtime.stream(), "one");
      work.wait(runtime.stream());
      observed_world->barrier("two");
      group->all_reduce(t, Reduce::sum, runtime.stream(), "three");
    }
    EXPECT_EQ(heard.calls, (std::vector<std::string>{"one", "two", "three"}));
  });
}

TEST(AsyncGroup, SleepsWhenIdleAndWhileItWaits) {
  each_rank(2, [](Group& world, Runtime& runtime) {
    const auto group = beside_of(world);
    Tensor t = make(runtime, {1}, DType::f32, {1.0});
    group->all_reduce(t, Reduce::sum, runtime.stream(), "start").wait(runtime.stream());
    world.barrier("start");
    const std::clock_t before = std::clock();
    if (world.rank() == 0) std::this_thread::sleep_for(Milliseconds(200));
    group->all_reduce(t, Reduce::sum, runtime.stream(), "late").wait(runtime.stream());
    EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 20);
  });
}

TEST(AsyncGroup, AsksForNoLargeBlocksOnceItRuns) {
  each_rank(2, [](Group& world, Runtime& runtime) {
    const auto group = beside_of(world);
    Tensor t = make(runtime, {100'000}, DType::f32, std::vector<double>(100'000, 1.0));
    const auto round = [&] {
      std::array<Work, 8> works;
      for (Work& work : works)
        work = group->all_reduce(t, Reduce::max, runtime.stream(), "gradients of a bucket");
      for (const Work& work : works) work.wait(runtime.stream());
      group->send(t, 1 - world.rank(), runtime.stream(), "there");
      group->recv(t, 1 - world.rank(), runtime.stream(), "there").wait(runtime.stream());
    };
    for (int i = 0; i < 3; ++i) round();
    world.barrier("warm");
    largest_block = 0;
    for (int i = 0; i < 3; ++i) round();
    EXPECT_LE(largest_block, 4096u);
    world.barrier("looked");
  });
}

}  // namespace
}  // namespace megatron
