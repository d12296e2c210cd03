#include <gtest/gtest.h>

#include <array>

#include "base/error.h"
#include "comm/traffic.h"

namespace megatron::comm {
namespace {

class Listener final : public TrafficListener {
 public:
  void communicated(const Traffic& traffic) override {
    sent += sent_bytes(traffic);
    ++calls;
  }
  double sent = 0;
  int calls = 0;
};

TEST(Simulated, CallsCheckTheirArgumentsAndNeverWait) {
  Runtime runtime({DeviceKind::meta, 0}, 1);
  const auto group = simulated(3, 1000);
  EXPECT_EQ(group->rank(), 3);
  EXPECT_EQ(group->size(), 1000);
  Arena& arena = runtime.arena(MemoryClass::communication);
  const Tensor small = Tensor::empty(arena, {4}, DType::f32, "small"),
               large = Tensor::empty(arena, {4000}, DType::f32, "large");
  group->all_gather(small, large, runtime.stream(), "gather");
  group->recv(small, 999, runtime.stream(), "receive");
  group->barrier("barrier");
  EXPECT_THROW(group->all_gather(small, small, runtime.stream(), "gather"), InternalError);
  EXPECT_THROW(group->send(small, 1000, runtime.stream(), "send"), InternalError);
  const auto part = group->split(0, 2, 8);
  EXPECT_EQ(part->size(), 8);
  EXPECT_EQ(part->rank(), 2);
}

TEST(Simulated, TrafficIsCounted) {
  Runtime runtime({DeviceKind::meta, 0}, 1);
  Listener listener;
  const auto group = simulated(0, 4);
  const auto observed_world = observed(*group, listener);
  const Tensor t = Tensor::empty(runtime.arena(MemoryClass::communication), {256}, DType::f32, "t");
  observed_world->all_reduce(t, Reduce::sum, runtime.stream(), "sum");  // 2 x 3/4 of 1024 bytes
  EXPECT_EQ(listener.sent, 1536);
  observed_world->broadcast(t, 0, runtime.stream(), "from 0");
  EXPECT_EQ(listener.sent, 1536 + 1024);
  observed_world->recv(t, 1, runtime.stream(), "receive");
  EXPECT_EQ(listener.sent, 1536 + 1024);
  EXPECT_EQ(listener.calls, 3);
  // Sends all 64 rows of 16 bytes to the next rank, as in a ring; then 16 rows to each rank.
  const Tensor rows = t.view({64, 4}), received = rows;
  observed_world->all_to_all(rows, received, std::array<int64_t, 4>{0, 64, 0, 0},
                             std::array<int64_t, 4>{0, 0, 0, 64}, runtime.stream(), "ring");
  EXPECT_EQ(listener.sent, 1536 + 2 * 1024);
  const std::array<int64_t, 4> even = {16, 16, 16, 16};
  observed_world->all_to_all(rows, received, even, even, runtime.stream(), "exchange");
  EXPECT_EQ(listener.sent, 1536 + 2 * 1024 + 768);
}

TEST(SentBytes, OfEachCollective) {
  const auto sent = [](std::string_view collective) {
    return sent_bytes({.collective = collective, .call = "x", .ranks = 4, .bytes = 1000});
  };
  EXPECT_EQ(sent("all_reduce"), 1500);
  for (const char* c : {"all_gather", "reduce_scatter"}) EXPECT_EQ(sent(c), 750) << c;
  for (const char* c : {"broadcast", "send"}) EXPECT_EQ(sent(c), 1000) << c;
  for (const char* c : {"recv", "barrier"}) EXPECT_EQ(sent(c), 0) << c;
}

}  // namespace
}  // namespace megatron::comm
