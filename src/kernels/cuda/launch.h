// Launching kernels, and how their work is cut.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "base/divide.h"
#include "device/cuda/runtime_call.h"
#include "device/cuda/stream.h"

namespace megatron::kernels::cuda {

// Threads of a block of element-wise work, and bytes that a thread reads and writes at a time.
inline constexpr int kThreads = 256;
inline constexpr int kVectorBytes = 16;

struct Grid {
  dim3 blocks, threads = dim3(kThreads);
  size_t dynamic_shared = 0;  // bytes
};

// One thread an item, in blocks of kThreads.
inline Grid grid_for(int64_t items) {
  return {dim3(static_cast<unsigned>(std::max<int64_t>(1, ceil_div(items, kThreads))))};
}

// Queues the kernel. A kernel with no work (a dimension of 0 blocks) is the caller's to leave out.
// Throws Error naming `name` for a launch that CUDA refuses.
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

// Shared memory that a block may have on every GPU of the supported compute capabilities.
inline constexpr size_t kSharedEverywhere = 99 << 10;
// Throws Error naming the kernel's work where the thread's GPU gives a block less than that.
void check_shared_memory(const char* name, size_t bytes);

// Lets a kernel have that many bytes of dynamic shared memory a block; above 48 KB it must ask.
template <class... Parameters>
void allow_dynamic_shared(void (*kernel)(Parameters...), size_t bytes) {
  megatron::cuda::check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "cudaFuncSetAttribute");
}

}  // namespace megatron::kernels::cuda
