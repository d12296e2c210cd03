#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "dist/ranks.h"
#include "hang_limit.h"
#include "text.h"

namespace megatron {
namespace {

using testing::error_of;
using testing::expect_contains;

using comm::Group;
using comm::Reduce;
using testing::each_rank;
using testing::make;

using Call = std::function<void(Group&, Runtime&)>;

// Rank 0 of three makes one call, the others another. Each rank throws an error that names both
// calls, and the group stays usable.
void expect_mismatch(const Call& a, const Call& b, std::initializer_list<std::string_view> parts) {
  each_rank(3, [&](Group& world, Runtime& runtime) {
    const std::string text = error_of([&] { (world.rank() == 0 ? a : b)(world, runtime); });
    expect_contains(text, parts);
    Tensor t = make(runtime, {1}, DType::f32, {1.0});
    world.all_reduce(t, Reduce::sum, runtime.stream(), "after");
    EXPECT_EQ(to_doubles(t)[0], 3.0);
  });
}

Call reduce(std::string call, int64_t n, DType type, Reduce op = Reduce::sum) {
  return [=](Group& world, Runtime& runtime) {
    Tensor t = make(runtime, {n}, type);
    std::memset(t.raw(), 0, static_cast<size_t>(t.bytes()));
    world.all_reduce(t, op, runtime.stream(), call);
  };
}

TEST(Mismatch, IsToldOnEveryRank) {
  expect_mismatch(reduce("loss", 2, DType::f32), reduce("grads", 2, DType::f32),
                  {"'loss'", "'grads'", "rank 0", "rank 1"});
  expect_mismatch(reduce("x", 2, DType::f32), reduce("x", 3, DType::f32), {"8 bytes", "12 bytes"});
  expect_mismatch(reduce("x", 2, DType::f32), reduce("x", 4, DType::bf16), {"f32", "bf16"});
  expect_mismatch(reduce("x", 2, DType::f32), reduce("x", 2, DType::f32, Reduce::max),
                  {"sum", "max"});
  expect_mismatch(reduce("x", 2, DType::f32), [](Group& world, Runtime&) { world.barrier("step"); },
                  {"all_reduce 'x'", "barrier 'step'"});
  const auto broadcast = [](int root) {
    return [root](Group& world, Runtime& runtime) {
      world.broadcast(make(runtime, {1}, DType::f32, {0.0}), root, runtime.stream(), "b");
    };
  };
  expect_mismatch(broadcast(0), broadcast(2), {"root 0", "root 2"});
}

TEST(Mismatch, RowCountsOfAllToAll) {
  each_rank(2, [&](Group& world, Runtime& runtime) {
    const std::vector<int64_t> send = {1, 2}, receive = {1, 1};
    Tensor in = make(runtime, {3, 2}, DType::f32, std::vector<double>(6)),
           out = make(runtime, {2, 2}, DType::f32);
    const std::string text =
        error_of([&] { world.all_to_all(in, out, send, receive, runtime.stream(), "moe"); });
    expect_contains(text, {"'moe'", "rank 0 sends 2 rows to rank 1", "expects 1"});
  });
}

TEST(Mismatch, OfAMessageStopsBothRanks) {
  const std::string text = error_of([] {
    each_rank(2, [&](Group& world, Runtime& runtime) {
      Tensor t = make(runtime, {2}, DType::f32, {1.0, 2.0});
      if (world.rank() == 0) {
        world.send(t, 1, runtime.stream(), "forward 3");
        world.barrier("never");
      } else {
        world.recv(t, 0, runtime.stream(), "forward 4");
      }
    });
  });
  expect_contains(text, {"'forward 3'", "'forward 4'", "rank 0", "rank 1"});
}

TEST(Failure, WakesAllRanksSoonAndTheFirstExceptionComesOut) {
  using Clock = std::chrono::steady_clock;
  std::atomic<Clock::rep> thrown = 0;
  std::atomic<int> woken = 0;
  try {
    each_rank(4, [&](Group& world, Runtime& runtime) {
      const auto pair = world.split(world.rank() / 2, 0, 2);
      Tensor t = make(runtime, {1}, DType::f32, {1.0});
      if (world.rank() == 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        thrown = Clock::now().time_since_epoch().count();
        throw std::out_of_range("disk 7 is full");
      }
      const std::string text = error_of([&] {
        // Ranks 0 and 1 wait in a message of the world, rank 2 in its pair.
        if (world.rank() == 0) world.barrier("step 5");
        if (world.rank() == 1) pair->recv(t, 0, runtime.stream(), "step 5");
        if (world.rank() == 2) pair->all_reduce(t, Reduce::sum, runtime.stream(), "step 5");
      });
      const Clock::duration late = Clock::now().time_since_epoch() - Clock::duration(thrown.load());
      EXPECT_LT(late, std::chrono::seconds(testing::kHangSeconds));
      expect_contains(text, {"'step 5'", "rank 3", "disk 7 is full"});
      ++woken;
      // Later calls throw immediately.
      EXPECT_THROW(world.barrier("again"), Error);
      EXPECT_THROW(world.send(t, 0, runtime.stream(), "again"), Error);
      throw Error("a consequence");
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "disk 7 is full");
  }
  EXPECT_EQ(woken, 3);
}

TEST(Failure, ThatIsNoStdException) {
  EXPECT_THROW(each_rank(2,
                         [](Group& world, Runtime&) {
                           if (world.rank() == 1) throw 7;
                           world.barrier("x");
                         }),
               int);
}

TEST(Failure, OfARankThatEndsTooEarlyIsNoHang) {
  const std::string barrier = error_of([] {
    each_rank(3, [](Group& world, Runtime&) {
      if (world.rank() != 1) world.barrier("last");
    });
  });
  expect_contains(barrier, {"rank 1 has exited", "barrier 'last'"});
  const std::string message = error_of([] {
    each_rank(2, [](Group& world, Runtime& runtime) {
      if (world.rank() == 0)
        world.recv(make(runtime, {1}, DType::f32), 1, runtime.stream(), "gone");
    });
  });
  expect_contains(message, {"rank 1 has exited", "'gone'"});
}

// A rank fails at a random moment of the others' work. No rank reads memory of a rank that is gone,
// and none hangs.
TEST(Failure, AtAnyMoment) {
  for (int round = 0; round < 60; ++round) {
    EXPECT_THROW(each_rank(4,
                           [&](Group& world, Runtime& runtime) {
                             const auto others = world.split(world.rank() == 0 ? 0 : 1, 0,
                                                             world.rank() == 0 ? 1 : 3);
                             Tensor t =
                                 make(runtime, {5000}, DType::f32, std::vector<double>(5000, 1.0));
                             Tensor all = make(runtime, {15000}, DType::f32);
                             for (int i = 0; i < (world.rank() == 0 ? round * 3 : 1 << 30); ++i) {
                               if (world.rank() == 0) {
                                 std::this_thread::yield();
                                 continue;
                               }
                               others->all_reduce(t, Reduce::max, runtime.stream(), "work");
                               others->all_gather(t, all, runtime.stream(), "work");
                             }
                             throw std::runtime_error("gone");
                           }),
                 std::runtime_error);
  }
}

}  // namespace
}  // namespace megatron
