// Work recorded in a stream, and calls that are forbidden meanwhile.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>

#include "cuda_shim/control.h"

namespace {

__global__ void add_at(int* p, const int* value) { *p += *value; }

class Graphs : public ::testing::Test {
 protected:
  void SetUp() override {
    shim_problems();
    for (cudaStream_t* s : {&stream_, &other_}) cudaStreamCreateWithFlags(s, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    cudaMalloc(&p_, 2 * sizeof(int));
    cudaMemset(p_, 0, 2 * sizeof(int));
    cudaDeviceSynchronize();
  }
  void TearDown() override {
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    for (const cudaStream_t s : {stream_, other_}) {
      EXPECT_EQ(cudaStreamSynchronize(s), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess);
    }
    EXPECT_EQ(cudaFree(p_), cudaSuccess);
    EXPECT_STREQ(shim_problems(), "");
    EXPECT_EQ(shim_alive("graphs"), 0);
  }
  void queue(cudaStream_t stream) {
    cudaLaunchConfig_t config{};
    config.stream = stream;
    EXPECT_EQ(cudaLaunchKernelEx(&config, add_at, p_, p_ + 1), cudaSuccess);
  }
  void set(int index, int value) {
    EXPECT_EQ(cudaMemcpyAsync(p_ + index, &value, sizeof value, cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
  }
  int value() {
    int host = -1;
    cudaStreamSynchronize(stream_);
    EXPECT_EQ(cudaMemcpy(&host, p_, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }
  void begin() {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  }

  cudaStream_t stream_ = nullptr, other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  int* p_ = nullptr;
};

TEST_F(Graphs, RunAsOftenAsTheyAreLaunchedAndReadWhatIsThereThen) {
  set(0, 1);
  begin();
  queue(stream_);
  queue(stream_);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(value(), 1);  // nothing has run
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  set(1, 10);
  EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
  set(1, 100);
  EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
  EXPECT_EQ(value(), 221);
  EXPECT_EQ(shim_alive("graphs"), 1);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
}

// Each of these fails immediately, or invalidates the recording, and is reported.
TEST_F(Graphs, RefuseWhatCudaForbidsWhileWorkIsRecorded) {
  int host = 0;
  int* more = nullptr;
  ASSERT_EQ(cudaEventRecord(event_, other_), cudaSuccess);
  const std::pair<const char*, std::function<cudaError_t()>> calls[] = {
      {"cudaStreamSynchronize", [&] { return cudaStreamSynchronize(stream_); }},
      {"cudaStreamQuery", [&] { return cudaStreamQuery(stream_); }},
      {"cudaDeviceSynchronize", [] { return cudaDeviceSynchronize(); }},
      {"cudaMalloc", [&] { return cudaMalloc(&more, 4); }},
      {"cudaFree", [&] { return cudaFree(p_); }},
      {"cudaMemcpy", [&] { return cudaMemcpy(&host, p_, 4, cudaMemcpyDeviceToHost); }},
      {"pageable", [&] { return cudaMemcpyAsync(p_, &host, 4, cudaMemcpyHostToDevice, stream_); }},
      {"other work", [&] { return cudaStreamWaitEvent(stream_, event_); }},
      {"cudaEventQuery", [&] { return cudaEventQuery(event_); }},
      {"cudaEventSynchronize", [&] { return cudaEventSynchronize(event_); }},
      {"cudaStreamBeginCapture",
       [&] { return cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    begin();
    EXPECT_NE(call(), cudaSuccess);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_NE(std::string(shim_problems()).find(name), std::string::npos);
  }
  cudaStreamSynchronize(other_);
}

TEST_F(Graphs, LetAThreadMapMemoryThatSaysSo) {
  begin();
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  int* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 4), cudaSuccess);
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  cudaError_t of_other_thread = cudaErrorUnknown;
  std::thread([&] { of_other_thread = cudaFree(more); }).join();
  EXPECT_EQ(of_other_thread, cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(Graphs, EndInTheThreadThatBegan) {
  begin();
  cudaGraph_t graph = nullptr;
  cudaError_t of_other_thread = cudaSuccess;
  std::thread([&] { of_other_thread = cudaStreamEndCapture(stream_, &graph); }).join();
  EXPECT_EQ(of_other_thread, cudaErrorStreamCaptureWrongThread);
  EXPECT_NE(std::string(shim_problems()), "");
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(Graphs, TellEventsThatWereRecordedIntoOne) {
  begin();
  EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream_, event_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorCapturedEvent);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_NE(std::string(shim_problems()).find("cudaEventQuery"), std::string::npos);
}

// --- A second stream that waits for recorded work.

class GraphsOfTwoStreams : public Graphs {
 protected:
  // Makes `from` continue after the work that `stream` has so far.
  void follow(cudaStream_t stream, cudaStream_t from) {
    EXPECT_EQ(cudaEventRecord(event_, from), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(stream, event_), cudaSuccess);
  }
  cudaGraph_t end() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    return graph;
  }
  // Launches the graph `times` times; work queued on `stream_` afterwards runs after it.
  void run(cudaGraph_t graph, int times) {
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    for (int i = 0; i < times; ++i) EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  }
};

// p = 2 (p + v), computed by two streams in turn.
TEST_F(GraphsOfTwoStreams, RunInTheOrderOfTheirWaits) {
  set(0, 1);
  set(1, 10);
  begin();
  queue(stream_);
  follow(other_, stream_);
  cudaLaunchConfig_t config{};
  config.stream = other_;
  EXPECT_EQ(cudaLaunchKernelEx(&config, add_at, p_, p_), cudaSuccess);
  follow(stream_, other_);
  queue(stream_);
  const cudaGraph_t graph = end();
  EXPECT_EQ(cudaStreamSynchronize(other_), cudaSuccess);
  EXPECT_EQ(value(), 1);
  run(graph, 2);
  EXPECT_EQ(value(), 2 * (2 * (1 + 10) + 10 + 10) + 10);
}

TEST_F(GraphsOfTwoStreams, EndTogether) {
  begin();
  queue(stream_);
  follow(other_, stream_);
  queue(other_);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_NE(std::string(shim_problems()).find("does not wait for the last"), std::string::npos);
  queue(other_);  // no longer records
}

// Without the last wait the two streams would add concurrently.
TEST_F(GraphsOfTwoStreams, WhatNobodyWaitsForComesLate) {
  set(0, 1);
  set(1, 10);
  begin();
  follow(other_, stream_);
  queue(other_);
  cudaLaunchConfig_t config{};
  config.stream = stream_;
  EXPECT_EQ(cudaLaunchKernelEx(&config, add_at, p_, p_), cudaSuccess);  // should wait
  follow(stream_, other_);
  run(end(), 1);
  EXPECT_EQ(value(), 12);  // not 22
}

TEST_F(GraphsOfTwoStreams, AreOneRecording) {
  ASSERT_EQ(cudaEventRecord(event_, other_), cudaSuccess);
  begin();
  cudaEvent_t inside = nullptr;
  cudaEventCreateWithFlags(&inside, cudaEventDisableTiming);
  ASSERT_EQ(cudaEventRecord(inside, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(other_, inside), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other_), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(other_, &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamWaitEvent(other_, inside), cudaErrorCapturedEvent);
  EXPECT_NE(std::string(shim_problems()), "");
  EXPECT_EQ(cudaEventDestroy(inside), cudaSuccess);
}

}  // namespace
