#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "comm/threads.h"

namespace megatron::comm {
namespace {

Tensor make(Runtime& runtime, Shape shape, const std::vector<double>& values) {
  Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), shape, DType::f32, "test");
  copy_from(t, values);
  return t;
}

TEST(Single, IsTheIdentity) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  Stream& stream = runtime.stream();
  const auto group = single();
  const std::vector<double> values = {1, 2, 3, 4};
  Tensor t = make(runtime, {4}, values);
  group->all_reduce(t, Reduce::sum, stream, "a").wait(stream);
  group->broadcast(t, 0, stream, "b");
  group->all_gather(t, t, stream, "in place");
  EXPECT_EQ(to_doubles(t), values);

  const std::vector<int64_t> counts = {2};
  const std::vector<std::function<void(Tensor in, Tensor out)>> calls = {
      [&](Tensor in, Tensor out) { group->all_gather(in, out, stream, "c"); },
      [&](Tensor in, Tensor out) { group->reduce_scatter(in, out, Reduce::max, stream, "d"); },
      [&](Tensor in, Tensor out) { group->all_to_all(in, out, counts, counts, stream, "e"); },
      [&](Tensor in, Tensor out) {
        group->send(in, 0, stream, "f");
        group->recv(out, 0, stream, "f");
      }};
  for (const auto& call : calls) {
    Tensor out = make(runtime, {2, 2}, {0, 0, 0, 0});
    call(t.view({2, 2}), out);
    EXPECT_EQ(to_doubles(out), values);
  }
  group->barrier("g");
  EXPECT_EQ(group->split(3, 1, 1)->size(), 1);
}

TEST(Single, RefusesToWaitForWhatNobodySends) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const auto group = single();
  Tensor t = make(runtime, {1}, {0});
  EXPECT_THROW(group->recv(t, 0, runtime.stream(), "nothing"), Error);
  group->send(t, 0, runtime.stream(), "one");
  EXPECT_THROW(group->recv(t, 0, runtime.stream(), "another"), Error);
}

TEST(Single, WorksOnMeta) {
  Runtime runtime({DeviceKind::meta, 0}, 1);
  Arena& arena = runtime.arena(MemoryClass::activations);
  Tensor a = Tensor::empty(arena, {8}, DType::bf16, "a"),
         b = Tensor::empty(arena, {8}, DType::bf16, "b");
  const auto group = single();
  group->all_reduce(a, Reduce::sum, runtime.stream(), "a");
  group->all_gather(a, b, runtime.stream(), "b");
  group->send(a, 0, runtime.stream(), "c");
  group->recv(b, 0, runtime.stream(), "c");
}

TEST(RunRanks, OneRankRunsOnTheCallingThread) {
  std::thread::id ran;
  run_ranks(1, [&](Group& world) {
    ran = std::this_thread::get_id();
    EXPECT_EQ(world.size(), 1);
    EXPECT_EQ(world.rank(), 0);
  });
  EXPECT_EQ(ran, std::this_thread::get_id());
  EXPECT_THROW(run_ranks(0, [](Group&) {}), Error);
  EXPECT_THROW(run_ranks(1, [](Group&) { throw std::range_error("mine"); }), std::range_error);
}

}  // namespace
}  // namespace megatron::comm
