// What a test sets in CUDA's runtime on the CPU, and asks it. A program that opened the shared
// object finds these by dlsym. What is still alive when the program ends (streams, events, memory),
// and problems that nobody took, are printed then, and the program fails with status 86.
#pragma once

#include <cstdint>

// Planted troubles of a whole program, by environment variables that nothing but the shim reads,
// when the program first calls CUDA. Numbers are whole and decimal.
//   CUDA_SHIM_DEVICES, CUDA_SHIM_DRIVER, CUDA_SHIM_CAPABILITY
//                                  as "devices" and "driver" below; 90 is compute capability 9.0
//   CUDA_SHIM_MEMORY=BYTES         as "memory": what goes beyond it is out of memory
//   CUDA_SHIM_SHARED=BYTES         as "shared": 101376 is that of compute capability 8.6, 8.9 or
//                                  12.0
//   CUDA_SHIM_PINNED=BYTES         as "pinned": host memory beyond it cannot be pinned
//   CUDA_SHIM_ALLOCATIONS=N        as "allocations": later ones are out of memory. Allocations that
//                                  CUDA and its libraries make for themselves count: for a kernel
//                                  that is launched for the first time, a graph, a handle, a
//                                  communicator
//   CUDA_SHIM_REFUSE_ALGORITHMS=N  as "refuse_algorithms": cublasLtMatmul answers
//                                  CUBLAS_STATUS_NOT_SUPPORTED to the first N of each product's
//                                  list
//   CUDA_SHIM_CUBLASLT=N           version that cuBLASLt reports (130100)
//   CUDA_SHIM_FAST_ALGORITHM=N     as "fast_algorithm": the algorithm at place N of each product's
//                                  list is the fastest
//   CUDA_SHIM_FAST_ALGORITHM_STEP=D  on device d it is the one at place N + d D
//   CUDA_SHIM_HANG=TEXT            as shim_hang(TEXT): work that never ends
#define CUDA_SHIM_EXPORT extern "C" __attribute__((visibility("default")))

// "devices": how many there are (1); "memory": bytes of each (2 GiB); "shared": bytes of shared
// memory that a block may have (232448); "pinned": bytes of the host's that may be pinned (no
// limit); "allocations": of device and pinned memory that succeed from now on (no limit); "driver":
// CUDA's version as cudaDriverGetVersion returns it (13000; 0: no driver); "descending": 1 runs
// threads, warps and blocks from the highest index down (0); "threads": OS threads that run blocks
// (a core each); "nccl_looks": how often calls of NCCL that do not block are in progress when they
// are looked at (1); "refuse_algorithms": how many of the first algorithms of each product's list
// cublasLtMatmul refuses (0); "refusal": with which status (15, CUBLAS_STATUS_NOT_SUPPORTED);
// "fast_algorithm": all but the one at that place of a product's list take a second longer by the
// device's clock, which nobody waits for (-1: none does). False: no such name.
CUDA_SHIM_EXPORT bool shim_set(const char* name, int64_t value);
// From now on, work whose name has that text never ends: a launch of such a kernel, or
// "cublasLtMatmul", "copy", "memset", "NCCL". Its stream stands still, and who waits for that,
// waits for ever. Empty: none; what hung goes on.
CUDA_SHIM_EXPORT void shim_hang(const char* text);
// The problems since the last call, a line each; errors that stick to the device are lifted. The
// text holds until the thread's next call.
CUDA_SHIM_EXPORT const char* shim_problems();
// "streams", "events", "graphs", "bytes" of device memory, "pinned" bytes of host memory that are
// alive; "pageable": bytes from or to memory that is not pinned that CUDA was asked to copy so far;
// "to host": those from a device to the host; -1: no such name.
CUDA_SHIM_EXPORT int64_t shim_alive(const char* name);
// Products that cuBLASLt has queued so far, with an epilogue (cublasLtEpilogue_t) and a reduction
// of parts of K (cublasLtReductionScheme_t).
CUDA_SHIM_EXPORT int64_t shim_products(uint32_t epilogue, uint32_t reduction);
// The place, in its product's list, of the algorithm of the product that was queued last; -1: none
// was.
CUDA_SHIM_EXPORT int64_t shim_last_algorithm();
// Those of them with a matrix whose address or leading dimension is no multiple of 16 bytes.
CUDA_SHIM_EXPORT int64_t shim_misaligned_products();
// Launches that the host has asked for so far, of kernels whose name has that text: those that are
// recorded into graphs, too, but not those that graphs make.
CUDA_SHIM_EXPORT int64_t shim_launches(const char* text);
