// Building blocks of device code: warps, blocks, shared memory, atomics, arithmetic.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <latch>
#include <numeric>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "cuda_shim/control.h"
#include "kernels/cuda/dynamic_shared.h"

namespace {

template <class... Parameters, class... Arguments>
void run(dim3 grid, dim3 block, size_t shared, void (*kernel)(Parameters...),
         Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  ASSERT_EQ(cudaLaunchKernelEx(&config, kernel, arguments...), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << shim_problems();
}

__global__ void shuffles(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  int* const own = out + 8 * i;
  own[0] = __shfl_xor_sync(~0u, i, 5);
  own[1] = __shfl_down_sync(~0u, i, 3);
  own[2] = __shfl_up_sync(~0u, i, 2);
  own[3] = __shfl_sync(~0u, i, 9);
  own[4] = __shfl_down_sync(~0u, i, 3, 8);
  own[5] = __shfl_sync(~0u, i, 1, 16);
  own[6] = static_cast<int>(__ballot_sync(~0u, i % 3 == 0));
  own[7] = __any_sync(~0u, i == 40) + 2 * __all_sync(~0u, i >= 32);
}

TEST(Kernels, ShufflesAndVotes) {
  std::vector<int> out(64 * 8);
  run(1, 64, 0, shuffles, out.data());
  unsigned thirds[2] = {};
  for (unsigned i = 0; i < 64; ++i) thirds[i / 32] |= (i % 3 == 0 ? 1u : 0u) << i % 32;
  for (int i = 0; i < 64; ++i) {
    const int lane = i % 32, first = i - lane;
    const int* const own = &out[static_cast<size_t>(8 * i)];
    EXPECT_EQ(own[0], first + (lane ^ 5));
    EXPECT_EQ(own[1], lane + 3 < 32 ? i + 3 : i);
    EXPECT_EQ(own[2], lane < 2 ? i : i - 2);
    EXPECT_EQ(own[3], first + 9);
    EXPECT_EQ(own[4], lane % 8 + 3 < 8 ? i + 3 : i);
    EXPECT_EQ(own[5], i / 16 * 16 + 1);
    EXPECT_EQ(own[6], static_cast<int>(thirds[i / 32]));
    EXPECT_EQ(own[7], i < 32 ? 0 : 3);
  }
}

// Sums a block's numbers in shared memory, halving the number of threads in each round.
__global__ void block_sums(const double* in, double* out, int* blocks) {
  auto* const part = reinterpret_cast<double*>(megatron::kernels::cuda::dynamic_shared());
  const unsigned t = threadIdx.y * blockDim.x + threadIdx.x, n = blockDim.x * blockDim.y;
  const unsigned block = blockIdx.z * gridDim.x + blockIdx.x;
  part[t] = in[block * n + t];
  for (unsigned half = n / 2; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) part[t] += part[t + half];
  }
  if (t == 0) {
    out[block] = part[0];
    atomicAdd(blocks, 1);
  }
}

TEST(Kernels, BlocksOfManyShapesInBothOrders) {
  std::vector<double> in(6 * 256);
  std::iota(in.begin(), in.end(), 0.0);
  for (const int descending : {0, 1}) {
    shim_set("descending", descending);
    std::vector<double> out(6);
    int blocks = 0;
    run(dim3(2, 1, 3), dim3(64, 4), 256 * sizeof(double), block_sums, in.data(), out.data(),
        &blocks);
    EXPECT_EQ(blocks, 6);
    for (size_t b = 0; b < 6; ++b)
      EXPECT_EQ(out[b], 256.0 * (256.0 * static_cast<double>(b)) + 255 * 128.0);
  }
  shim_set("descending", 0);
}

__global__ void count(unsigned long long* sum, int* largest, int* taken) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(sum, 1ull);
  atomicMax(largest, i);
  atomicCAS(taken, -1, i);
}

TEST(Kernels, AtomicsOfManyBlocksOnSeveralThreads) {
  shim_set("threads", 3);
  unsigned long long sum = 0;
  int largest = 0, taken = -1;
  run(300, 96, 0, count, &sum, &largest, &taken);
  EXPECT_EQ(sum, 300u * 96);
  EXPECT_EQ(largest, 300 * 96 - 1);
  EXPECT_NE(taken, -1);
  shim_set("threads", 0);
}

__global__ void uninitialised(float* out) {
  out[threadIdx.x] =
      reinterpret_cast<float*>(megatron::kernels::cuda::dynamic_shared())[threadIdx.x];
}

TEST(Kernels, MemoryThatNobodyWroteIsNan) {
  std::vector<float> out(32);
  run(1, 32, 128, uninitialised, out.data());
  for (const float x : out) EXPECT_TRUE(std::isnan(x));
  float* p = nullptr;
  ASSERT_EQ(cudaMalloc(&p, 4), cudaSuccess);
  EXPECT_TRUE(std::isnan(*p));
  cudaFree(p);
}

TEST(Kernels, HalvesRoundAsTheBaseDoes) {
  for (uint32_t i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(i * 2654435761u);
    if (std::isnan(x)) continue;
    ASSERT_EQ(__bfloat16_as_ushort(__float2bfloat16_rn(x)), megatron::bf16(x).bits) << x;
    ASSERT_EQ(__half_as_ushort(__float2half_rn(x)), megatron::f16(x).bits) << x;
  }
  const __nv_bfloat16 a(1.0f), b(0.00390625f);
  EXPECT_EQ(static_cast<float>(a + b), 1.0f);
  EXPECT_TRUE(a > b);
}

__global__ void meet(int* sum) {
  __syncthreads();
  atomicAdd(sum, 1);
}

// Many ranks launch large kernels while other ranks run too. The stacks of all these threads
// together would need more mappings than a process may have.
TEST(Kernels, OfManyThreadsOfTheHostsShareTheirStacks) {
  constexpr int kHosts = 40, kBlock = 1024;
  std::latch all(kHosts);
  std::vector<int> sums(kHosts);
  std::vector<std::thread> hosts;
  for (int& sum : sums) {
    hosts.emplace_back([&] {
      run(1, kBlock, 0, meet, &sum);
      all.arrive_and_wait();
    });
  }
  for (std::thread& host : hosts) host.join();
  for (const int sum : sums) EXPECT_EQ(sum, kBlock);
}

}  // namespace
