// Devices, runtimes and their streams.
#include "device/device.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/stream.h"

namespace megatron {
namespace {

TEST(Device, NamesAndKinds) {
  EXPECT_EQ(to_string({DeviceKind::cpu}), "cpu");
  EXPECT_EQ(to_string({DeviceKind::cuda, 3}), "cuda:3");
  EXPECT_TRUE(Device{DeviceKind::reference}.is_host());
  EXPECT_FALSE(Device{DeviceKind::meta}.is_host());
  EXPECT_FALSE(Device{DeviceKind::meta}.has_data());
  EXPECT_FALSE(Device{DeviceKind::cuda}.is_host());
}

TEST(Runtime, GivesAnArenaAClassAndAStream) {
  Runtime runtime({DeviceKind::cpu}, 3);
  EXPECT_EQ(runtime.pool().size(), 3);
  EXPECT_EQ(runtime.stream().device(), runtime.device());
  for (int i = 0; i < kMemoryClasses; ++i) {
    const auto memory_class = static_cast<MemoryClass>(i);
    EXPECT_EQ(runtime.arena(memory_class).memory_class(), memory_class);
    EXPECT_FALSE(name(memory_class).empty());
  }
  EXPECT_EQ(&runtime.stream().scratch(), &runtime.arena(MemoryClass::scratch));
  EXPECT_TRUE(runtime.stream().record().reached());
  EXPECT_NO_THROW(runtime.stream().wait(Event()));
}

TEST(Runtime, OffloadedMemoryIsCountedApart) {
  Runtime runtime({DeviceKind::cpu}, 1);
  Arena& host = runtime.arena(MemoryClass::offload);
  EXPECT_EQ(name(MemoryClass::offload), "offload");
  const auto block = host.allocate(100, "test");
  EXPECT_TRUE(block->device().is_host());
  EXPECT_EQ(block->memory_class(), MemoryClass::offload);
  EXPECT_EQ(host.in_use(), 128);
  EXPECT_EQ(runtime.arena(MemoryClass::activations).in_use(), 0);
  EXPECT_EQ(runtime.arena(MemoryClass::optimizer).in_use(), 0);
}

TEST(Runtime, RefusesWhatTheMachineDoesNotHave) {
  EXPECT_THROW(Runtime({DeviceKind::cuda, 99}, 1), Error);
  EXPECT_THROW(Runtime({DeviceKind::cpu}, 0), Error);
}

}  // namespace
}  // namespace megatron
