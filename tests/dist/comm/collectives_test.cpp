#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "dist/ranks.h"

namespace megatron {
namespace {

using comm::Group;
using comm::Reduce;
using testing::each_rank;
using testing::make;

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64,
                            DType::i32, DType::i16, DType::i8,   DType::u16, DType::u8};

// Element i of rank r. Floating-point sums of these values are inexact, and the values are small
// integers for integer types.
double element(int rank, int64_t i, DType type) {
  if (!is_floating(type)) return static_cast<double>((i * 7 + rank * 3) % 30);
  return std::sin(static_cast<double>(i) * 1.7 + rank * 0.9) *
         std::pow(10.0, static_cast<double>((i + rank) % 4));
}

std::vector<double> elements(int rank, int64_t n, DType type) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(element(rank, i, type));
  return values;
}

// The value rounded to the type.
double rounded(double value, DType type) {
  switch (type) {
    case DType::f32: return static_cast<float>(value);
    case DType::bf16: return static_cast<float>(bf16(static_cast<float>(value)));
    case DType::f16: return static_cast<float>(f16(static_cast<float>(value)));
    default: return value;
  }
}

// The serial computation: in rank order, in f32 (f64 for f64), rounded once.
double reduced(int ranks, int64_t i, DType type, Reduce op) {
  double acc = rounded(element(0, i, type), type);
  for (int r = 1; r < ranks; ++r) {
    const double x = rounded(element(r, i, type), type);
    if (op == Reduce::max) {
      acc = std::max(acc, x);
    } else {
      acc = is_floating(type) && type != DType::f64
                ? static_cast<float>(acc) + static_cast<float>(x)
                : acc + x;
    }
  }
  return rounded(acc, type);
}

class Collectives : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(1, 2, 3, 4));

TEST_P(Collectives, AllReduceIsTheSerialSumBitForBit) {
  const int ranks = GetParam();
  for (const DType type : kTypes) {
    for (const Reduce op : {Reduce::sum, Reduce::max}) {
      for (const int64_t n : {0, 1, 63, 64, 257, 1000}) {
        each_rank(ranks, [&](Group& world, Runtime& runtime) {
          Tensor t = make(runtime, {n}, type, elements(world.rank(), n, type));
          const comm::Work work = world.all_reduce(t, op, runtime.stream(), "sum");
          work.wait(runtime.stream());
          EXPECT_TRUE(work.done.reached());
          const std::vector<double> got = to_doubles(t);
          for (int64_t i = 0; i < n; ++i) {
            EXPECT_EQ(got[static_cast<size_t>(i)], reduced(ranks, i, type, op))
                << name(type) << " element " << i;
          }
        });
      }
    }
  }
}

TEST_P(Collectives, LargeAllReduceOverAPool) {
  const int ranks = GetParam();
  const int64_t n = 300'001;
  testing::run_ranks(ranks, [&](Group& world) {
    Runtime runtime({DeviceKind::cpu, 0}, 2);
    Tensor t = make(runtime, {n}, DType::f32, elements(world.rank(), n, DType::f32));
    world.all_reduce(t, Reduce::sum, runtime.stream(), "large");
    const auto got = t.span<float>();
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i)
      wrong += got[static_cast<size_t>(i)] != reduced(ranks, i, DType::f32, Reduce::sum);
    EXPECT_EQ(wrong, 0);
  });
}

TEST_P(Collectives, AllGatherJoinsInRankOrder) {
  const int ranks = GetParam();
  for (const DType type : kTypes) {
    for (const int64_t n : {0, 5, 130}) {
      each_rank(ranks, [&](Group& world, Runtime& runtime) {
        Tensor in = make(runtime, {n}, type, elements(world.rank(), n, type)),
               out = make(runtime, {ranks, n}, type);
        world.all_gather(in, out, runtime.stream(), "gather");
        const std::vector<double> got = to_doubles(out);
        for (int64_t i = 0; i < n * ranks; ++i) {
          EXPECT_EQ(got[static_cast<size_t>(i)],
                    rounded(element(static_cast<int>(i / n), i % n, type), type));
        }
      });
    }
  }
}

TEST_P(Collectives, AllGatherInPlace) {
  const int ranks = GetParam();
  each_rank(ranks, [&](Group& world, Runtime& runtime) {
    Tensor out = make(runtime, {ranks, 3}, DType::f32);
    Tensor in = out.slice(0, world.rank(), 1);
    copy_from(in, elements(world.rank(), 3, DType::f32));
    world.all_gather(in, out, runtime.stream(), "gather");
    const std::vector<double> got = to_doubles(out);
    for (int64_t i = 0; i < 3 * ranks; ++i) {
      EXPECT_EQ(got[static_cast<size_t>(i)],
                rounded(element(static_cast<int>(i / 3), i % 3, DType::f32), DType::f32));
    }
  });
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsBlock) {
  const int ranks = GetParam();
  for (const DType type : kTypes) {
    for (const Reduce op : {Reduce::sum, Reduce::max}) {
      for (const bool in_place : {false, true}) {
        const int64_t n = 37;
        each_rank(ranks, [&](Group& world, Runtime& runtime) {
          Tensor in = make(runtime, {ranks * n}, type, elements(world.rank(), ranks * n, type));
          Tensor out = in_place ? in.slice(0, world.rank() * n, n) : make(runtime, {n}, type);
          world.reduce_scatter(in, out, op, runtime.stream(), "scatter");
          const std::vector<double> got = to_doubles(out);
          for (int64_t i = 0; i < n; ++i) {
            EXPECT_EQ(got[static_cast<size_t>(i)], reduced(ranks, world.rank() * n + i, type, op))
                << name(type);
          }
        });
      }
    }
  }
}

// Rows from rank a to rank b. Some counts are zero, and some ranks send or receive nothing.
int64_t rows(int from, int to) { return from == 1 ? 0 : (from * 2 + to) % 4; }

TEST_P(Collectives, AllToAllMovesUnevenRows) {
  const int ranks = GetParam();
  for (const DType type : kTypes) {
    each_rank(ranks, [&](Group& world, Runtime& runtime) {
      const int me = world.rank();
      std::vector<int64_t> send, receive;
      std::vector<double> values, expected;
      int64_t sent = 0, received = 0;
      for (int r = 0; r < ranks; ++r) {
        send.push_back(rows(me, r));
        receive.push_back(rows(r, me));
        for (int64_t i = 0; i < rows(me, r) * 3; ++i)
          values.push_back(static_cast<double>(me * 20 + r * 5 + i % 3));
        for (int64_t i = 0; i < rows(r, me) * 3; ++i)
          expected.push_back(static_cast<double>(r * 20 + me * 5 + i % 3));
        sent += send.back();
        received += receive.back();
      }
      Tensor in = make(runtime, {sent, 3}, type, values), out = make(runtime, {received, 3}, type);
      world.all_to_all(in, out, send, receive, runtime.stream(), "dispatch");
      EXPECT_EQ(to_doubles(out), expected);
    });
  }
}

TEST_P(Collectives, BroadcastFromEachRoot) {
  const int ranks = GetParam();
  for (const DType type : kTypes) {
    for (int root = 0; root < ranks; ++root) {
      each_rank(ranks, [&](Group& world, Runtime& runtime) {
        Tensor t = make(runtime, {70}, type, elements(world.rank(), 70, type));
        world.broadcast(t, root, runtime.stream(), "weights");
        const std::vector<double> got = to_doubles(t);
        for (int64_t i = 0; i < 70; ++i)
          EXPECT_EQ(got[static_cast<size_t>(i)], rounded(element(root, i, type), type));
      });
    }
  }
}

TEST_P(Collectives, MessagesArriveInOrder) {
  const int ranks = GetParam();
  each_rank(ranks, [&](Group& world, Runtime& runtime) {
    const int next = (world.rank() + 1) % ranks, before = (world.rank() + ranks - 1) % ranks;
    for (int m = 0; m < 20; ++m) {  // all are sent before any is received
      Tensor t = make(runtime, {m}, DType::i32,
                      std::vector<double>(static_cast<size_t>(m), world.rank() * 100 + m));
      world.send(t, next, runtime.stream(), "ring");
    }
    for (int m = 0; m < 20; ++m) {
      Tensor t = make(runtime, {m}, DType::i32);
      world.recv(t, before, runtime.stream(), "ring");
      EXPECT_EQ(to_doubles(t), std::vector<double>(static_cast<size_t>(m), before * 100 + m));
    }
  });
}

TEST_P(Collectives, SplitOrdersByKeyThenRank) {
  const int ranks = GetParam();
  each_rank(ranks, [&](Group& world, Runtime& runtime) {
    const auto reversed = world.split(0, -world.rank(), ranks);
    EXPECT_EQ(reversed->size(), ranks);
    EXPECT_EQ(reversed->rank(), ranks - 1 - world.rank());
    const auto halves = world.split(world.rank() % 2, 7,
                                    (ranks + 1 - world.rank() % 2) / 2);  // ranks 0, 2 and 1, 3
    EXPECT_EQ(halves->rank(), world.rank() / 2);
    Tensor t = make(runtime, {1}, DType::f32, {std::pow(10.0, world.rank())});
    halves->all_reduce(t, Reduce::sum, runtime.stream(), "halves");
    double expected = 0;
    for (int r = world.rank() % 2; r < ranks; r += 2) expected += std::pow(10.0, r);
    EXPECT_EQ(to_doubles(t)[0], expected);

    const auto nested =
        reversed->split(world.rank() == 0 ? 1 : 0, 0, world.rank() == 0 ? 1 : ranks - 1);
    EXPECT_EQ(nested->size(), world.rank() == 0 ? 1 : ranks - 1);
    Tensor root = make(runtime, {1}, DType::i32, {static_cast<double>(world.rank())});
    nested->broadcast(root, 0, runtime.stream(), "nested");
    EXPECT_EQ(to_doubles(root)[0], world.rank() == 0 ? 0 : ranks - 1);
  });
}

// Each group is used by one thread at a time, while both threads of a rank run concurrently.
TEST_P(Collectives, TwoThreadsOfARankUseTwoGroups) {
  const int ranks = GetParam();
  testing::run_ranks(ranks, [&](Group& world) {
    const auto other = world.split(0, 0, ranks);
    const auto work = [ranks](Group& group, int from) {
      Runtime runtime({DeviceKind::reference, 0}, 1);
      for (int i = from; i < from + 100; ++i) {
        Tensor t = make(runtime, {100}, DType::i32, std::vector<double>(100, i));
        group.all_reduce(t, Reduce::sum, runtime.stream(), "two threads");
        EXPECT_EQ(to_doubles(t), std::vector<double>(100, i * ranks));
      }
    };
    std::thread second([&] { work(*other, 1000); });
    work(world, 0);
    second.join();
  });
}

TEST_P(Collectives, MetaTensorsMeetButHoldNothing) {
  const int ranks = GetParam();
  each_rank(ranks, DeviceKind::meta, [&](Group& world, Runtime& runtime) {
    Stream& stream = runtime.stream();
    Tensor small = make(runtime, {4, 2}, DType::bf16),
           large = make(runtime, {4 * ranks, 2}, DType::bf16);
    std::vector<int64_t> counts(static_cast<size_t>(ranks), 4);
    world.all_reduce(small, Reduce::sum, stream, "a");
    world.all_gather(small, large, stream, "b");
    world.reduce_scatter(large, small, Reduce::sum, stream, "c");
    world.all_to_all(large, large, counts, counts, stream, "d");
    world.broadcast(small, 0, stream, "e");
    world.send(small, (world.rank() + 1) % ranks, stream, "f");
    world.recv(small, (world.rank() + ranks - 1) % ranks, stream, "f");
    world.barrier("g");
  });
}

TEST_P(Collectives, TwoHundredRoundsGiveTheSameBits) {
  const int ranks = GetParam();
  std::vector<std::vector<float>> results(static_cast<size_t>(ranks));
  each_rank(ranks, [&](Group& world, Runtime& runtime) {
    Stream& stream = runtime.stream();
    const int64_t n = 300;
    const std::vector<double> values = elements(world.rank(), n, DType::f32);
    Tensor t = make(runtime, {n}, DType::f32), part = make(runtime, {n}, DType::f32);
    Tensor all = make(runtime, {n * ranks}, DType::f32);
    std::vector<float>& first = results[static_cast<size_t>(world.rank())];
    for (int round = 0; round < 200; ++round) {
      copy_from(t, values);
      world.all_reduce(t, Reduce::sum, stream, "reduce");
      world.all_gather(t, all, stream, "gather");
      world.reduce_scatter(all, part, Reduce::sum, stream, "scatter");
      world.send(part, (world.rank() + 1) % ranks, stream, "ring");
      world.recv(t, (world.rank() + ranks - 1) % ranks, stream, "ring");
      world.broadcast(t, round % ranks, stream, "broadcast");
      if (round == 0) first = to_floats(t);
      EXPECT_EQ(to_floats(t), first) << "round " << round;
    }
  });
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

}  // namespace
}  // namespace megatron
