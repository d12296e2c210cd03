// Launches kernels and divides their work into blocks.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/divide.h"
#include "device/cuda/runtime_call.h"
#include "device/cuda/stream.h"

namespace megatron::kernels::cuda {

// Threads per block for element-wise work, and bytes that a thread reads or writes at a time.
inline constexpr int kThreads = 256;
inline constexpr int kVectorBytes = 16;

struct Grid {
  dim3 blocks, threads = dim3(kThreads);
  size_t dynamic_shared = 0;  // bytes
};

// Grid with one thread per item, in blocks of kThreads.
inline Grid grid_for(int64_t items) {
  return {dim3(static_cast<unsigned>(std::max<int64_t>(1, ceil_div(items, kThreads))))};
}

// Launches the kernel on the stream. Callers must skip launches with no work (a grid dimension of
// 0). Throws Error naming the kernel if CUDA refuses the launch.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, Stream& stream,
            const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.dynamic_shared;
  config.stream = megatron::cuda::handle_of(stream);
  megatron::cuda::check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
                        name);
}

// Throws Error naming the kernel if a launch cannot have so many blocks in its first dimension.
void check_blocks(const char* name, int64_t blocks);

// Shared memory per block that every GPU of the supported compute capabilities offers.
inline constexpr size_t kSharedEverywhere = 99 << 10;
// Throws Error naming the work and what to use instead if the current GPU offers less shared memory
// per block than `bytes`.
void check_shared_memory(std::string_view work, size_t bytes, std::string_view instead);

// Allows a kernel `bytes` of dynamic shared memory per block, which CUDA requires above 48 KB.
template <class... Parameters>
void allow_dynamic_shared(void (*kernel)(Parameters...), size_t bytes) {
  megatron::cuda::check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "cudaFuncSetAttribute");
}

}  // namespace megatron::kernels::cuda
