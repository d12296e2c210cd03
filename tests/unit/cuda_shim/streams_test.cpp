// Streams with deferred work, events, and their misuse.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "cuda_shim/control.h"

namespace {

__global__ void add_to(int* p, int value) { *p += value; }
__global__ void times(int* p, int value) { *p *= value; }

class Streams : public ::testing::Test {
 protected:
  void SetUp() override {
    shim_problems();
    for (cudaStream_t* s : {&a_, &b_}) cudaStreamCreateWithFlags(s, cudaStreamNonBlocking);
    for (cudaEvent_t* e : {&first_, &second_}) cudaEventCreateWithFlags(e, cudaEventDisableTiming);
    cudaMalloc(&p_, sizeof(int));
    cudaMemset(p_, 0, sizeof(int));
    cudaDeviceSynchronize();
  }
  void TearDown() override {
    for (const cudaEvent_t e : {first_, second_}) EXPECT_EQ(cudaEventDestroy(e), cudaSuccess);
    for (const cudaStream_t s : {a_, b_}) {
      EXPECT_EQ(cudaStreamSynchronize(s), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess);
    }
    EXPECT_EQ(cudaFree(p_), cudaSuccess);
    EXPECT_STREQ(shim_problems(), "");
  }
  void queue(cudaStream_t stream, void (*kernel)(int*, int), int value) {
    cudaLaunchConfig_t config{};
    config.stream = stream;
    EXPECT_EQ(cudaLaunchKernelEx(&config, kernel, p_, value), cudaSuccess);
  }
  int value() {
    int host = -1;
    EXPECT_EQ(cudaMemcpy(&host, p_, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

  cudaStream_t a_ = nullptr, b_ = nullptr;
  cudaEvent_t first_ = nullptr, second_ = nullptr;
  int* p_ = nullptr;
};

TEST_F(Streams, RunWhenTheHostWaits) {
  queue(a_, add_to, 5);
  EXPECT_EQ(value(), 0);  // cudaMemcpy does not wait for a non-blocking stream
  EXPECT_EQ(cudaStreamQuery(a_), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(a_), cudaSuccess);
  EXPECT_EQ(value(), 5);
}

TEST_F(Streams, WaitForEvents) {
  queue(a_, add_to, 3);
  EXPECT_EQ(cudaEventRecord(first_, a_), cudaSuccess);
  queue(a_, add_to, 100);
  EXPECT_EQ(cudaStreamWaitEvent(b_, first_), cudaSuccess);
  queue(b_, times, 7);
  EXPECT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(value(), 21);
  cudaStreamSynchronize(a_);
  EXPECT_EQ(value(), 121);
}

TEST_F(Streams, WithoutAWaitTheResultIsWrong) {
  queue(a_, add_to, 3);
  queue(b_, times, 7);
  cudaDeviceSynchronize();
  EXPECT_EQ(value(), 3);
}

// Deliberate fault: waits for an event recorded before the needed work.
TEST_F(Streams, WaitForTheWrongEventIsWrong) {
  cudaEventRecord(first_, a_);
  queue(a_, add_to, 3);
  cudaEventRecord(second_, a_);
  cudaStreamWaitEvent(b_, first_);
  queue(b_, times, 7);
  cudaDeviceSynchronize();
  EXPECT_EQ(value(), 3);
}

TEST_F(Streams, AWaitIsForTheEventAsItWasRecordedThen) {
  queue(a_, add_to, 3);
  cudaEventRecord(first_, a_);
  cudaStreamWaitEvent(b_, first_);
  queue(a_, add_to, 10);
  cudaEventRecord(first_, a_);
  queue(b_, times, 2);
  cudaStreamSynchronize(b_);
  EXPECT_EQ(value(), 6);
  cudaEventSynchronize(first_);
  EXPECT_EQ(value(), 16);
}

TEST_F(Streams, QueriesEndWhenTheyAreRepeated) {
  queue(a_, add_to, 1);
  cudaEventRecord(first_, a_);
  EXPECT_EQ(cudaEventQuery(first_), cudaErrorNotReady);
  int queries = 0;
  while (cudaEventQuery(first_) == cudaErrorNotReady && queries < 1000) ++queries;
  EXPECT_LT(queries, 1000);
  EXPECT_EQ(value(), 1);
}

TEST_F(Streams, HostMemoryIsReadAtTheCallUnlessItIsPinned) {
  int host = 4;
  cudaMemcpyAsync(p_, &host, sizeof host, cudaMemcpyDefault, a_);
  host = 5;
  cudaStreamSynchronize(a_);
  EXPECT_EQ(value(), 4);
  int* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&pinned), sizeof(int), cudaHostAllocPortable),
            cudaSuccess);
  *pinned = 6;
  cudaMemcpyAsync(p_, pinned, sizeof host, cudaMemcpyDefault, a_);
  *pinned = 7;
  cudaStreamSynchronize(a_);
  EXPECT_EQ(value(), 7);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(Streams, EventsThatAreNone) {
  EXPECT_EQ(cudaStreamWaitEvent(a_, first_), cudaSuccess);
  EXPECT_NE(std::string(shim_problems()).find("never recorded"), std::string::npos);
  cudaEvent_t gone = nullptr;
  cudaEventCreate(&gone);
  cudaEventDestroy(gone);
  EXPECT_EQ(cudaStreamWaitEvent(a_, gone), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(gone, a_), cudaErrorInvalidResourceHandle);
  EXPECT_NE(std::string(shim_problems()), "");
}

TEST_F(Streams, DestroyedWithWorkQueued) {
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  queue(stream, add_to, 1);
  cudaStreamDestroy(stream);
  EXPECT_NE(std::string(shim_problems()).find("destroyed with work"), std::string::npos);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  shim_problems();
}

TEST_F(Streams, OfTwoDevices) {
  shim_set("devices", 2);
  queue(a_, add_to, 1);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaLaunchConfig_t config{};
  config.stream = a_;
  EXPECT_EQ(cudaLaunchKernelEx(&config, add_to, p_, 1), cudaErrorInvalidResourceHandle);
  cudaEvent_t other = nullptr;
  cudaEventCreate(&other);
  EXPECT_EQ(cudaEventRecord(other, a_), cudaErrorInvalidResourceHandle);
  cudaEventDestroy(other);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  shim_set("devices", 1);
  shim_problems();
}

TEST_F(Streams, OfManyHostThreads) {
  std::vector<std::thread> threads;
  std::vector<int> sums(4);
  for (size_t t = 0; t < sums.size(); ++t) {
    threads.emplace_back([&sums, t] {
      cudaStream_t stream = nullptr;
      int* p = nullptr;
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      cudaMalloc(&p, sizeof(int));
      cudaMemsetAsync(p, 0, sizeof(int), stream);
      cudaLaunchConfig_t config{};
      config.stream = stream;
      for (int i = 0; i < 200; ++i) {
        cudaLaunchKernelEx(&config, add_to, p, i);
        if (i % 50 == 0) cudaStreamSynchronize(stream);
      }
      cudaMemcpyAsync(&sums[t], p, sizeof(int), cudaMemcpyDefault, stream);
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
      cudaFree(p);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums, std::vector<int>(4, 199 * 100));
}

using StreamsDeath = Streams;

// Deliberate fault: the program ends while a stream is alive.
TEST_F(StreamsDeath, LeakedStream) {
  EXPECT_EXIT(
      {
        cudaStream_t leaked = nullptr;
        cudaStreamCreate(&leaked);
        std::exit(0);
      },
      testing::ExitedWithCode(86), "not destroyed when the program ended: 3 streams");
}

}  // namespace
