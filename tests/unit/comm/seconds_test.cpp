#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/threads.h"
#include "device/stream.h"

namespace megatron::comm {
namespace {

TEST(Seconds, GrowWithTheWaitAndNotBetweenCalls) {
  run_ranks(2, [](Group& world) {
    EXPECT_EQ(world.seconds(), 0);
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    world.barrier("first");
    const double after = world.seconds();
    if (world.rank() == 1) {
      EXPECT_GE(after, 0.04);
    } else {
      EXPECT_LT(after, 0.03);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(world.seconds(), after);
  });
}

TEST(Seconds, OfEveryCall) {
  const auto each = [](Group& world) {
    Runtime runtime({DeviceKind::reference, 0}, 1);
    Stream& stream = runtime.stream();
    const auto make = [&](int64_t n) {
      Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), {n}, DType::f32, "test");
      copy_from(t, std::vector<double>(static_cast<size_t>(n), 1.0));
      return t;
    };
    const int ranks = world.size();
    const int next = (world.rank() + 1) % ranks, before = (world.rank() + ranks - 1) % ranks;
    Tensor small = make(1000), large = make(1000 * ranks), other = make(1000 * ranks);
    const std::vector<int64_t> counts(static_cast<size_t>(ranks), 1000);
    std::vector<std::function<void()>> calls = {
        [&] { world.all_gather(small, large, stream, "x"); },
        [&] { world.reduce_scatter(large, small, Reduce::sum, stream, "x"); },
        [&] { world.all_to_all(large, other, counts, counts, stream, "x"); },
        [&] { world.send(small, next, stream, "x"); },
        [&] { world.recv(small, before, stream, "x"); }};
    if (ranks > 1) {
      calls.emplace_back([&] { world.all_reduce(small, Reduce::sum, stream, "x"); });
      calls.emplace_back([&] { world.broadcast(small, 0, stream, "x"); });
      calls.emplace_back([&] { world.barrier("x"); });
      calls.emplace_back([&] { world.split(0, 0, ranks); });
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      const double so_far = world.seconds();
      calls[i]();
      EXPECT_GT(world.seconds(), so_far) << "call " << i << " of " << ranks << " ranks";
    }
  };
  run_ranks(1, each);
  run_ranks(2, each);
}

}  // namespace
}  // namespace megatron::comm
