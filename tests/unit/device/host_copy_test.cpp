// Copies between a GPU and pageable host memory, which use a ring of pinned buffers
// (device/cuda/host_copy.h), on the CUDA plugin for the CPU with its deferred streams.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "device/cuda_plugin.h"

namespace megatron::host_copies {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};
constexpr int64_t kBuffer = int64_t{8} << 20, kRing = 4 * kBuffer, kSmall = int64_t{64} << 10;

template <class F>
F* of_shim(const char* name) {
  return reinterpret_cast<F*>(cuda_symbol(name));
}
int64_t counted(const char* name) { return of_shim<int64_t(const char*)>("shim_alive")(name); }

using Bytes = std::vector<std::byte>;

// Returns different bytes for each number.
Bytes bytes(int64_t size, uint64_t number) {
  Bytes all(static_cast<size_t>(size));
  uint64_t state = number * 0x9E3779B97F4A7C15ull + 1;
  for (size_t at = 0; at < all.size(); at += 8) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    std::memcpy(all.data() + at, &state, std::min<size_t>(8, all.size() - at));
  }
  return all;
}

class HostCopies : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(cuda_state().plugin, nullptr) << cuda_state().why_not; }
  void TearDown() override { EXPECT_STREQ(of_shim<const char*()>("shim_problems")(), ""); }

  static std::shared_ptr<Storage> room(Runtime& runtime, int64_t bytes) {
    return runtime.arena(MemoryClass::activations).allocate(bytes, "room");
  }
  static Bytes read_now(const std::byte* from, int64_t size) {
    Bytes all(static_cast<size_t>(size));
    cuda_plugin().copy_now(all.data(), from, size, kGpu);
    return all;
  }
};

TEST_F(HostCopies, HaveTheirBytesAtEverySizeRoundTheBuffers) {
  Runtime runtime(kGpu, 1);
  const auto device = room(runtime, kRing + kBuffer + 64);
  uint64_t number = 0;
  for (const int64_t n : {int64_t{0}, int64_t{1}, kSmall, kSmall + 1, kBuffer - 1, kBuffer,
                          kBuffer + 1, kRing, kRing + kBuffer + 3}) {
    SCOPED_TRACE(n);
    const Bytes values = bytes(n, ++number);
    std::byte* const at = device->data() + number % 3;
    const int64_t before = counted("pageable");
    Bytes source = values, back(values.size());
    cuda_plugin().copy(at, source.data(), n, runtime.stream());
    std::ranges::fill(source, std::byte{0});  // the call has already read it
    cuda_plugin().copy(back.data(), at, n, runtime.stream());
    runtime.stream().synchronize();
    EXPECT_TRUE(back == values);
    const Bytes others = bytes(n, ++number);
    cuda_plugin().copy_now(at, others.data(), n, kGpu);
    EXPECT_TRUE(read_now(at, n) == others);
    EXPECT_EQ(counted("pageable") - before, n <= kSmall ? 4 * n : 0) << "by CUDA alone";
  }
}

// Buffers are reused before the stream has executed their first use.
TEST_F(HostCopies, ComeInTheOrderOfTheStream) {
  Runtime runtime(kGpu, 1);
  Stream& stream = runtime.stream();
  const int64_t n = kRing + kBuffer;
  const auto x = room(runtime, n), y = room(runtime, n);
  const Bytes first = bytes(n, 1), second = bytes(n, 2);
  cuda_plugin().fill(x->data(), 7, n, stream);
  cuda_plugin().copy(x->data(), first.data(), n, stream);
  cuda_plugin().copy(y->data(), x->data(), n, stream);
  cuda_plugin().copy(x->data(), second.data(), n, stream);
  Bytes back(first.size());
  cuda_plugin().copy(back.data(), y->data(), n, stream);
  cuda_plugin().fill(y->data(), 0, n, stream);
  stream.synchronize();
  EXPECT_TRUE(back == first);
  EXPECT_TRUE(read_now(x->data(), n) == second);
}

// One stream's copies do not wait for another stream, which may be waiting for the caller.
TEST_F(HostCopies, OfOneStreamDoNotWaitForAnother) {
  Runtime one(kGpu, 1), other(kGpu, 1);
  const auto x = room(one, kRing), y = room(other, kRing);
  const Bytes first = bytes(kRing, 3), second = bytes(kRing, 4);
  of_shim<void(const char*)>("shim_hang")("memset");
  cuda_plugin().fill(x->data(), 7, kRing, one.stream());
  cuda_plugin().copy(x->data(), first.data(), kRing, one.stream());  // fills the ring and blocks
  const int64_t before = counted("pageable");
  cuda_plugin().copy(y->data(), second.data(), kRing, other.stream());
  Bytes back(second.size());
  cuda_plugin().copy(back.data(), y->data(), kRing, other.stream());
  other.stream().synchronize();
  EXPECT_TRUE(back == second);
  EXPECT_EQ(counted("pageable") - before, 2 * kRing) << "no buffer was free";
  of_shim<void(const char*)>("shim_hang")("");
  one.stream().synchronize();
  EXPECT_TRUE(read_now(x->data(), kRing) == first);
}

TEST_F(HostCopies, OfSeveralThreadsShareTheRing) {
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([t] {
      Runtime runtime(kGpu, 1);
      const int64_t n = 2 * kBuffer + 5;
      const auto device = room(runtime, n);
      for (uint64_t i = 0; i < 4; ++i) {
        const Bytes values = bytes(n, 10 * t + i);
        Bytes back(values.size());
        cuda_plugin().copy(device->data(), values.data(), n, runtime.stream());
        if (i % 2 == 0) {
          cuda_plugin().copy(back.data(), device->data(), n, runtime.stream());
          runtime.stream().synchronize();
        } else {
          cuda_plugin().copy_now(back.data(), device->data(), n, kGpu);
        }
        EXPECT_TRUE(back == values) << t << " " << i;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A replay would read the ring's buffers again, with different contents.
TEST_F(HostCopies, AreNotRecorded) {
  Runtime runtime(kGpu, 1);
  const auto device = room(runtime, kBuffer);
  const Bytes values = bytes(kBuffer, 5);
  {
    const auto recording = cuda_plugin().record(runtime.stream());
    try {
      cuda_plugin().copy(device->data(), values.data(), kBuffer, runtime.stream());
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("needs pinned host memory"), std::string::npos);
    }
  }
  EXPECT_STREQ(of_shim<const char*()>("shim_problems")(), "") << "CUDA was not asked";
}

}  // namespace
}  // namespace megatron::host_copies
