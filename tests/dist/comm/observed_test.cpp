// Groups that report their calls to a listener.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "comm/traffic.h"
#include "dist/ranks.h"

namespace megatron {
namespace {

using comm::Group;
using comm::Reduce;
using comm::Traffic;
using testing::each_rank;
using testing::make;

struct Heard final : comm::TrafficListener {
  struct Call {
    std::string collective, name;
    int ranks;
    int64_t bytes;
    double began, ended;
  };
  std::vector<Call> calls;
  void communicated(const Traffic& t) override {
    calls.push_back(
        {std::string(t.collective), std::string(t.call), t.ranks, t.bytes, t.began, t.ended});
  }
};

class Observed : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Observed, ::testing::Values(1, 2, 3));

TEST_P(Observed, EveryCallIsToldWithItsBytesAndDone) {
  const int ranks = GetParam();
  each_rank(ranks, [&](Group& world, Runtime& runtime) {
    Heard heard;
    const auto group = comm::observed(world, heard);
    EXPECT_EQ(group->rank(), world.rank());
    EXPECT_EQ(group->size(), ranks);
    Stream& stream = runtime.stream();
    const int next = (world.rank() + 1) % ranks, before = (world.rank() + ranks - 1) % ranks;
    const std::vector<double> ones(10, 1.0);
    Tensor small = make(runtime, {10}, DType::f32, ones);
    Tensor large = make(runtime, {10 * ranks}, DType::f32);
    Tensor other = make(runtime, {10 * ranks}, DType::f32);
    const std::vector<int64_t> counts(static_cast<size_t>(ranks), 10);

    group->all_gather(small, large, stream, "gather").wait(stream);
    EXPECT_EQ(to_doubles(large), std::vector<double>(static_cast<size_t>(10 * ranks), 1.0));
    group->reduce_scatter(large, small, Reduce::sum, stream, "scatter").wait(stream);
    EXPECT_EQ(to_doubles(small), std::vector<double>(10, ranks));
    group->all_reduce(small, Reduce::sum, stream, "sum").wait(stream);
    EXPECT_EQ(to_doubles(small), std::vector<double>(10, ranks * ranks));
    group->all_to_all(large, other, counts, counts, stream, "all").wait(stream);
    EXPECT_EQ(to_doubles(other), to_doubles(large));
    group->broadcast(small, 0, stream, "root").wait(stream);
    group->send(small, next, stream, "message").wait(stream);
    group->recv(small, before, stream, "message").wait(stream);
    group->barrier("all here");

    const int64_t one = 40, all = one * ranks;
    const std::vector<std::tuple<std::string, std::string, int64_t>> wanted = {
        {"all_gather", "gather", all}, {"reduce_scatter", "scatter", all},
        {"all_reduce", "sum", one},    {"all_to_all", "all", all},
        {"broadcast", "root", one},    {"send", "message", one},
        {"recv", "message", one},      {"barrier", "all here", 0}};
    ASSERT_EQ(heard.calls.size(), wanted.size());
    double last = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const Heard::Call& call = heard.calls[i];
      EXPECT_EQ(std::make_tuple(call.collective, call.name, call.bytes), wanted[i]);
      EXPECT_EQ(call.ranks, ranks);
      EXPECT_LE(last, call.began);
      EXPECT_LE(call.began, call.ended);
      last = call.ended;
    }
    EXPECT_LE(last, now_seconds());
  });
}

TEST_P(Observed, GroupsSplitFromItTellToo) {
  const int ranks = GetParam();
  each_rank(ranks, [&](Group& world, Runtime& runtime) {
    Heard heard;
    const auto group = comm::observed(world, heard);
    const bool alone = world.rank() == ranks - 1;  // the last rank, apart from the others
    const auto part = group->split(alone ? 1 : 0, -world.rank(), alone ? 1 : ranks - 1);
    EXPECT_EQ(part->size(), alone ? 1 : ranks - 1);
    EXPECT_EQ(part->rank(), alone ? 0 : ranks - 2 - world.rank());
    Tensor t = make(runtime, {4}, DType::f64, {1, 2, 3, 4});
    part->all_reduce(t, Reduce::sum, runtime.stream(), "part").wait(runtime.stream());
    ASSERT_EQ(heard.calls.size(), 1);
    EXPECT_EQ(heard.calls[0].ranks, part->size());
    EXPECT_EQ(heard.calls[0].bytes, 32);
  });
}

TEST(ObservedSeconds, AreThoseOfItsCalls) {
  each_rank(2, [](Group& world, Runtime&) {
    Heard heard;
    world.barrier("before");
    const auto group = comm::observed(world, heard);
    EXPECT_EQ(group->seconds(), 0);
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    const double own = world.seconds();
    group->barrier("first");
    const double after = group->seconds();
    EXPECT_DOUBLE_EQ(after, world.seconds() - own);
    if (world.rank() == 1) {
      EXPECT_GE(after, 0.04);
      EXPECT_GE(heard.calls[0].ended - heard.calls[0].began, 0.04);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(group->seconds(), after);
  });
}

TEST(ObservedSeconds, ACallThatFailsIsNotTold) {
  const auto alone = comm::single();
  Runtime runtime({DeviceKind::reference, 0}, 1);
  Heard heard;
  const auto group = comm::observed(*alone, heard);
  Tensor t = make(runtime, {4}, DType::f64, {1, 2, 3, 4});
  EXPECT_THROW(group->recv(t, 0, runtime.stream(), "nothing was sent"), Error);
  EXPECT_TRUE(heard.calls.empty());
  EXPECT_EQ(group->seconds(), alone->seconds());
}

}  // namespace
}  // namespace megatron
