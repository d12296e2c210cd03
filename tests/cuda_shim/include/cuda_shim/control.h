// What a test tells CUDA's runtime on the CPU, and asks it. A program that opened the shared object
// finds these by dlsym. What is still alive when the program ends (streams, events, memory), and
// problems that nobody took, are printed then, and the program fails with status 86.
#pragma once

#include <cstdint>

#define CUDA_SHIM_EXPORT extern "C" __attribute__((visibility("default")))

// "devices": how many there are (1); "memory": bytes of each (1 GiB); "driver": CUDA's version as
// cudaDriverGetVersion tells it (13000; 0: no driver); "descending": 1 runs threads, warps and
// blocks from the highest index down (0); "threads": OS threads that run blocks (a core each);
// "nccl_looks": how often calls of NCCL that do not block are in progress when they are looked at
// (1).
// False: no such name.
CUDA_SHIM_EXPORT bool shim_set(const char* name, int64_t value);
// The problems since the last call, a line each; errors that stick to the device are lifted. The
// text holds until the thread's next call.
CUDA_SHIM_EXPORT const char* shim_problems();
// "streams", "events", "graphs", "bytes" of device memory, "pinned" bytes of host memory that are alive; -1:
// no such name.
CUDA_SHIM_EXPORT int64_t shim_alive(const char* name);
// Products that cuBLASLt has queued so far, with an epilogue (cublasLtEpilogue_t) and a reduction
// of parts of K (cublasLtReductionScheme_t).
CUDA_SHIM_EXPORT int64_t shim_products(uint32_t epilogue, uint32_t reduction);
