// Work of a stream that is recorded and launched again, on the plugin of tests/cuda_shim.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "device/cuda_plugin.h"
#include "device/recorded_part.h"

namespace megatron {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};

template <class F>
F* of_shim(const char* name) {
  return reinterpret_cast<F*>(cuda_symbol(name));
}
std::string problems() { return of_shim<const char*()>("shim_problems")(); }
int64_t alive(const char* name) { return of_shim<int64_t(const char*)>("shim_alive")(name); }

class Recorded : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(cuda_state().plugin, nullptr) << cuda_state().why_not; }
  void TearDown() override {
    EXPECT_EQ(problems(), "");
    EXPECT_EQ(alive("graphs"), 0);
  }
  int value(const Storage& storage) {
    int host = -1;
    cuda_plugin().copy_now(&host, storage.data(), sizeof host, kGpu);
    return host;
  }
  void put(const Storage& storage, int value) {
    cuda_plugin().copy(storage.data(), &value, sizeof value, runtime_.stream());
  }

  Runtime runtime_{kGpu, 1};
  Arena& arena_ = runtime_.arena(MemoryClass::activations);
  Stream& stream_ = runtime_.stream();
};

TEST_F(Recorded, WorkRunsWhenItIsQueuedAndReadsWhatIsThereThen) {
  const auto from = arena_.allocate(4, "from"), to = arena_.allocate(4, "to");
  put(*to, 1);
  std::unique_ptr<StreamRecording> recording = cuda_plugin().record(stream_);
  EXPECT_TRUE(stream_.recording());
  cuda_plugin().copy(to->data(), from->data(), 4, stream_);
  const std::unique_ptr<RecordedWork> work = recording->finish();
  EXPECT_FALSE(stream_.recording());
  EXPECT_EQ(value(*to), 1);
  for (const int number : {5, 7}) {
    put(*from, number);
    work->queue();
    EXPECT_EQ(value(*to), number);
  }
}

TEST_F(Recorded, APartKnowsWhereItHasItsMemory) {
  const auto to = arena_.allocate(4, "to"), from = arena_.allocate(4, "from");
  put(*from, 5);
  PartRecording recording(runtime_);
  auto between = arena_.allocate(4, "between");
  cuda_plugin().copy(between->data(), from->data(), 4, stream_);
  cuda_plugin().copy(to->data(), between->data(), 4, stream_);
  RecordedPart part = recording.finish();
  EXPECT_FALSE(part.memory_is_free());
  between.reset();
  EXPECT_TRUE(part.memory_is_free());
  part.queue();
  EXPECT_EQ(value(*to), 5);
  const auto other = arena_.allocate(4, "other");
  EXPECT_FALSE(part.memory_is_free());
}

TEST_F(Recorded, WhatIsNotFinishedIsDropped) {
  const auto to = arena_.allocate(4, "to");
  put(*to, 1);
  {
    const std::unique_ptr<StreamRecording> recording = cuda_plugin().record(stream_);
    cuda_plugin().fill(to->data(), 0, 4, stream_);
  }
  EXPECT_FALSE(stream_.recording());
  EXPECT_EQ(value(*to), 1);
}

// Another stream that waits for recorded work is part of the recording, and ends with it.
TEST_F(Recorded, StreamsTakePartThatWaitForIt) {
  Runtime other(kGpu, 1);
  const auto from = arena_.allocate(4, "from"), to = arena_.allocate(4, "to"),
             last = arena_.allocate(4, "last");
  put(*to, 1);
  std::unique_ptr<StreamRecording> recording = cuda_plugin().record(stream_);
  cuda_plugin().copy(to->data(), from->data(), 4, stream_);
  other.stream().wait(stream_.record());
  EXPECT_TRUE(other.stream().recording());
  EXPECT_THROW(other.stream().synchronize(), InternalError);
  cuda_plugin().copy(last->data(), to->data(), 4, other.stream());  // nobody waits for it
  const std::unique_ptr<RecordedWork> work = recording->finish();
  EXPECT_FALSE(other.stream().recording());
  EXPECT_EQ(value(*to), 1);
  for (const int number : {5, 7}) {
    put(*from, number);
    work->queue();
    EXPECT_EQ(value(*last), number);
  }
  // The other stream's earlier work runs before a launch, and its later work after it.
  cuda_plugin().fill(from->data(), 1, 4, other.stream());
  work->queue();
  cuda_plugin().fill(to->data(), 2, 4, other.stream());
  other.stream().synchronize();
  EXPECT_EQ(value(*last), 0x01010101);
  EXPECT_EQ(value(*to), 0x02020202);
}

TEST_F(Recorded, StreamsThatTookPartGoOnWhereItIsDropped) {
  Runtime other(kGpu, 1);
  const auto to = arena_.allocate(4, "to");
  {
    const std::unique_ptr<StreamRecording> recording = cuda_plugin().record(stream_);
    other.stream().wait(stream_.record());
    cuda_plugin().fill(to->data(), 1, 4, other.stream());
  }
  EXPECT_NE(problems().find("the last of it"), std::string::npos);
  cuda_plugin().fill(to->data(), 2, 4, other.stream());
  other.stream().synchronize();
  EXPECT_EQ(value(*to), 0x02020202);
}

// Recorded work has not run, so nothing can wait for it.
TEST_F(Recorded, NobodyWaitsForIt) {
  const auto to = arena_.allocate(4, "to");
  const std::unique_ptr<StreamRecording> recording = cuda_plugin().record(stream_);
  cuda_plugin().fill(to->data(), 0, 4, stream_);
  EXPECT_THROW(stream_.synchronize(), InternalError);
  EXPECT_THROW(value(*to), InternalError);
  EXPECT_NE(recording->finish(), nullptr);
}

TEST_F(Recorded, MemoryMayGrowMeanwhile) {
  const std::unique_ptr<StreamRecording> recording = cuda_plugin().record(stream_);
  const auto block = arena_.allocate(int64_t{8} << 20, "block");
  cuda_plugin().fill(block->data(), 1, 4, stream_);
  recording->finish()->queue();
  EXPECT_EQ(value(*block), 0x01010101);
}

// A copy that waits for the whole device would invalidate another thread's recording.
TEST_F(Recorded, OtherThreadsWaitForTheDeviceAfterIt) {
  Runtime other(kGpu, 1);
  const auto block = other.arena(MemoryClass::activations).allocate(4, "block");
  cuda_plugin().fill(block->data(), 2, 4, other.stream());
  std::unique_ptr<StreamRecording> recording = cuda_plugin().record(stream_);
  std::atomic<int> read = 0;
  std::thread reader([&] { read = value(*block); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(read, 0);
  EXPECT_NE(recording->finish(), nullptr);
  reader.join();
  EXPECT_EQ(read, 0x02020202);
}

// Events are reused: only as many are created as are held at the same time.
TEST_F(Recorded, EventsAreUsedAgain) {
  const auto to = arena_.allocate(4, "to");
  Runtime other(kGpu, 1);
  const int64_t before = alive("events");
  for (int i = 0; i < 50; ++i) {
    put(*to, i);
    const Event one = stream_.record(), two = stream_.record();
    other.stream().wait(two);
  }
  EXPECT_EQ(alive("events"), before + 2);
  const Event held = stream_.record();
  put(*to, 60);
  stream_.record();  // records another event; only `held` is in use
  cuda_plugin().fill(to->data(), 0, 4, stream_);
  EXPECT_FALSE(held.reached());
  held.wait_on_host();
  EXPECT_TRUE(held.reached());
  stream_.synchronize();
}

}  // namespace
}  // namespace megatron
