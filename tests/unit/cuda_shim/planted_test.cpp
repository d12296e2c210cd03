// Deliberate faults: wrong kernels and calls, each of which the shim must catch.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "cuda_shim/control.h"
#include "kernels/cuda/dynamic_shared.h"

namespace {

constexpr int kBlock = 64;

// out[i] = in[i] + in[i of the block's last thread - i].
template <bool kFaulty>
__global__ void add_mirrored(const int* in, int* out) {
  __shared__ int tile[kBlock];
  const int i = static_cast<int>(threadIdx.x), at = static_cast<int>(blockIdx.x) * kBlock + i;
  tile[i] = in[at];
  if (!kFaulty) __syncthreads();
  out[at] = tile[i] + tile[kBlock - 1 - i];
}

// tile[0] is read by all threads: correct only by chance, if thread 0 runs first.
template <bool kFaulty>
__global__ void add_first(const int* in, int* out) {
  __shared__ int first;
  const int at = static_cast<int>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x);
  if (threadIdx.x == 0) first = in[at];
  if (!kFaulty) __syncthreads();
  out[at] = in[at] + first;
}

template <bool kFaulty>
__global__ void twice(const int* in, int* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (kFaulty ? i <= n : i < n) out[i] = 2 * in[i];
}

__global__ void half_sync() {
  if (threadIdx.x < kBlock / 2) __syncthreads();
}
__global__ void half_shuffle(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}
__global__ void nothing() {}
__global__ void wrong_mask(int* out) { out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1, 1); }
__global__ void shared_past_the_end(int n) { megatron::kernels::cuda::dynamic_shared()[n] = 1; }

class Planted : public ::testing::Test {
 protected:
  void SetUp() override {
    shim_problems();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&in_, kBytes), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&out_, kBytes), cudaSuccess);
    std::vector<int> values(kCount);
    for (int i = 0; i < kCount; ++i) values[static_cast<size_t>(i)] = i * i;
    ASSERT_EQ(cudaMemcpyAsync(in_, values.data(), kBytes, cudaMemcpyDefault, stream_), cudaSuccess);
  }
  void TearDown() override {
    shim_set("descending", 0);
    shim_problems();  // clears sticky errors
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(cudaFree(in_), cudaSuccess);
    EXPECT_EQ(cudaFree(out_), cudaSuccess);
    EXPECT_STREQ(shim_problems(), "");
  }

  template <class... Parameters, class... Arguments>
  cudaError_t launch(void (*kernel)(Parameters...), Arguments... arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = kCount / kBlock;
    config.blockDim = kBlock;
    config.dynamicSmemBytes = shared_;
    config.stream = stream_;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
  }
  template <class... Parameters, class... Arguments>
  std::vector<int> run(void (*kernel)(Parameters...), Arguments... arguments) {
    EXPECT_EQ(launch(kernel, arguments...), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    std::vector<int> values(kCount);
    EXPECT_EQ(cudaMemcpy(values.data(), out_, kBytes, cudaMemcpyDefault), cudaSuccess);
    return values;
  }
  // Returns the report for a kernel whose fault appears when it runs.
  template <class... Parameters, class... Arguments>
  std::string fault(void (*kernel)(Parameters...), Arguments... arguments) {
    EXPECT_EQ(launch(kernel, arguments...), cudaSuccess);
    EXPECT_NE(cudaStreamSynchronize(stream_), cudaSuccess);
    return shim_problems();
  }
  static bool has(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  }

  static constexpr int kCount = 1024;  // a page of ints
  static constexpr size_t kBytes = kCount * sizeof(int);
  cudaStream_t stream_ = nullptr;
  int *in_ = nullptr, *out_ = nullptr;
  size_t shared_ = 0;
};

TEST_F(Planted, SyncthreadsThatIsMissing) {
  const std::vector<int> right = run(add_mirrored<false>, in_, out_);
  for (int i = 0; i < kCount; ++i) {
    const int other = i / kBlock * kBlock + kBlock - 1 - i % kBlock;
    ASSERT_EQ(right[static_cast<size_t>(i)], i * i + other * other);
  }
  EXPECT_NE(run(add_mirrored<true>, in_, out_), right);
}

TEST_F(Planted, SyncthreadsThatIsMissingWhereOneOrderIsRightByChance) {
  const std::vector<int> right = run(add_first<false>, in_, out_);
  const std::vector<int> by_chance = run(add_first<true>, in_, out_);
  ASSERT_TRUE(shim_set("descending", 1));
  EXPECT_EQ(run(add_first<false>, in_, out_), right);
  EXPECT_NE(run(add_first<true>, in_, out_), by_chance);
}

TEST_F(Planted, SyncthreadsThatHalfOfTheThreadsReach) {
  const std::string text = fault(half_sync);
  EXPECT_TRUE(has(text, "half_sync")) << text;
  EXPECT_TRUE(has(text, "32 of 64 threads reached __syncthreads")) << text;
}

TEST_F(Planted, ShuffleOfHalfAWarpOrAnotherMask) {
  std::string text = fault(half_shuffle, out_);
  EXPECT_TRUE(has(text, "16 of 32 lanes of warp 0")) << text;
  text = fault(wrong_mask, out_);
  EXPECT_TRUE(has(text, "wrong_mask") && has(text, "0xffff")) << text;
}

TEST_F(Planted, TailOffByOne) {
  run(twice<false>, in_, out_, kCount);
  // The page after the last element does not belong to the array.
  const std::string text = [&] {
    cudaLaunchConfig_t config{};
    config.gridDim = kCount / kBlock + 1;
    config.blockDim = kBlock;
    config.stream = stream_;
    EXPECT_EQ(cudaLaunchKernelEx(&config, twice<true>, in_, out_, kCount), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
    return std::string(shim_problems());
  }();
  EXPECT_TRUE(has(text, "twice<true>") && has(text, "no memory of the device")) << text;
}

TEST_F(Planted, DynamicSharedMemoryPastItsEnd) {
  shared_ = 256;
  EXPECT_EQ(launch(shared_past_the_end, 255), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  const std::string text = fault(shared_past_the_end, 256);
  EXPECT_TRUE(has(text, "shared_past_the_end")) << text;
}

TEST_F(Planted, UseAfterFree) {
  int* gone = nullptr;
  ASSERT_EQ(cudaMalloc(&gone, kBytes), cudaSuccess);
  ASSERT_EQ(cudaFree(gone), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(out_, gone, kBytes, cudaMemcpyDefault, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(gone, 0, kBytes, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(gone), cudaErrorInvalidValue);
  EXPECT_TRUE(has(shim_problems(), "not all device memory that is allocated"));
  const std::string text = fault(twice<false>, gone, out_, kCount);
  EXPECT_TRUE(has(text, "device memory that is not allocated")) << text;
}

TEST_F(Planted, CopyPastTheEnd) {
  std::vector<int> host(kCount + 1);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), out_, kBytes + 4, cudaMemcpyDefault, stream_),
            cudaErrorInvalidValue);
  EXPECT_NE(std::string(shim_problems()), "");
}

TEST_F(Planted, ErrorsStayUntilTheyAreTaken) {
  fault(half_sync);  // takes
  EXPECT_EQ(launch(half_sync), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(launch(half_sync), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_NE(std::string(shim_problems()), "");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Planted, LaunchesBeyondTheLimits) {
  const auto refused = [&](dim3 grid, dim3 block, size_t shared) {
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream_;
    return cudaLaunchKernelEx(&config, nothing) == cudaErrorInvalidConfiguration;
  };
  EXPECT_TRUE(refused(0, 32, 0));
  EXPECT_TRUE(refused(1, 1025, 0));
  EXPECT_TRUE(refused(1, 32, (48 << 10) + 1));
  EXPECT_EQ(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536),
            cudaSuccess);
  EXPECT_FALSE(refused(1, 32, 65536));
  EXPECT_TRUE(refused(1, 32, 65537));
  EXPECT_EQ(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
            cudaErrorInvalidValue);
}

// --- Faults of the machine, not of the program.

TEST_F(Planted, MemoryThatIsUsedUp) {
  const int64_t used = shim_alive("bytes");
  ASSERT_TRUE(shim_set("memory", used + 3000));
  void *one = nullptr, *two = nullptr;
  EXPECT_EQ(cudaMalloc(&one, 2000), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&two, 2000), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(one), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&two, 2000), cudaSuccess);
  ASSERT_TRUE(shim_set("memory", int64_t{2} << 30));
  ASSERT_TRUE(shim_set("allocations", 1));
  EXPECT_EQ(cudaMalloc(&one, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(one), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&one, 8), cudaErrorMemoryAllocation) << "the second one from then on";
  ASSERT_TRUE(shim_set("allocations", std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(cudaFree(two), cudaSuccess);
}

TEST_F(Planted, HostMemoryThatCannotBePinned) {
  ASSERT_TRUE(shim_set("pinned", 4096));
  void *one = nullptr, *two = nullptr;
  EXPECT_EQ(cudaHostAlloc(&one, 4096, 0), cudaSuccess);
  EXPECT_EQ(cudaHostAlloc(&two, 1, 0), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFreeHost(one), cudaSuccess);
  ASSERT_TRUE(shim_set("pinned", std::numeric_limits<int64_t>::max()));
}

TEST_F(Planted, KernelThatNeverEnds) {
  cudaEvent_t before = nullptr, after = nullptr;
  ASSERT_EQ(cudaEventCreate(&before), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&after), cudaSuccess);
  shim_hang("twice");
  launch(add_mirrored<false>, in_, out_);
  EXPECT_EQ(cudaEventRecord(before, stream_), cudaSuccess);
  launch(twice<false>, in_, out_, kCount);
  EXPECT_EQ(cudaEventRecord(after, stream_), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(before), cudaSuccess) << "another kernel ends";
  for (int i = 0; i < 100; ++i) EXPECT_EQ(cudaEventQuery(after), cudaErrorNotReady);
  shim_hang("");
  EXPECT_EQ(cudaEventSynchronize(after), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(before), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(after), cudaSuccess);
}

TEST_F(Planted, CopyThatNeverEndsInAGraph) {
  shim_hang("copy");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t work = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(out_, in_, kBytes, cudaMemcpyDefault, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&work, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(work, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  shim_hang("");
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(work), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
