// Settings and queries of CUDA's runtime on the CPU, for tests. A program that opened the shared
// object finds these functions by dlsym. When the program ends, live streams, events and memory,
// and problems that nobody read, are printed, and the program fails with status 86.
#pragma once

#include <cstdint>

// Faults for a whole program, set by environment variables that only the shim reads, when the
// program first calls CUDA. Numbers are decimal integers.
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

// Sets a value; the default is in parentheses. Returns false if there is no such name. "devices":
// number of devices (1). "memory": bytes of each (2 GiB). "shared": bytes of shared memory that a
// block may have (232448). "pinned": bytes of host memory that may be pinned (no limit).
// "allocations": allocations of device and pinned memory that succeed from now on (no limit).
// "driver": CUDA's version as cudaDriverGetVersion returns it (13000; 0 means no driver).
// "capability": compute capability (90 is 9.0). "cublaslt": cuBLASLt's version (130100).
// "descending": 1 runs threads, warps and blocks from the highest index down (0). "threads": OS
// threads that run blocks (one per core). "nccl_looks": number of queries for which non-blocking
// NCCL calls are in progress (1). "refuse_algorithms": number of algorithms at the start of each
// product's list that cublasLtMatmul refuses (0). "refusal": status of these refusals (15,
// CUBLAS_STATUS_NOT_SUPPORTED). "fast_algorithm": all algorithms except the one at this place of a
// product's list take a second longer by the device's clock, without a real wait (-1: no
// difference).
CUDA_SHIM_EXPORT bool shim_set(const char* name, int64_t value);
// From now on, work whose name contains `text` never ends: launches of such kernels, or
// "cublasLtMatmul", "copy", "memset", "NCCL". Its stream stops, and waiting for the stream never
// returns. An empty text lets all work continue.
CUDA_SHIM_EXPORT void shim_hang(const char* text);
// Returns the problems since the last call, one per line, and clears sticky device errors. The text
// is valid until the thread's next call.
CUDA_SHIM_EXPORT const char* shim_problems();
// Live "streams", "events", "graphs", "bytes" of device memory or "pinned" bytes of host memory;
// "pageable": bytes that CUDA was asked to copy from or to pageable memory so far; "to host": bytes
// copied from a device to the host. Returns -1 if there is no such name.
CUDA_SHIM_EXPORT int64_t shim_alive(const char* name);
// Number of products that cuBLASLt has queued so far with an epilogue (cublasLtEpilogue_t) and a
// reduction over parts of K (cublasLtReductionScheme_t).
CUDA_SHIM_EXPORT int64_t shim_products(uint32_t epilogue, uint32_t reduction);
// Place of the last queued product's algorithm in the product's list, or -1 if no product was
// queued.
CUDA_SHIM_EXPORT int64_t shim_last_algorithm();
// Number of queued products with a matrix whose address or leading dimension is not a multiple of
// 16 bytes.
CUDA_SHIM_EXPORT int64_t shim_misaligned_products();
// Number of kernel launches requested by the host so far whose name contains `text`. Includes
// launches recorded into graphs, but not launches made by graphs.
CUDA_SHIM_EXPORT int64_t shim_launches(const char* text);
