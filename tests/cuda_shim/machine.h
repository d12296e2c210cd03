// The machine that the shim's runtime pretends: its devices, memory, streams and problems.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda_shim/control.h"
#include "cuda_shim/work.h"

namespace cuda_shim {

constexpr int kMaxDevices = 8;
constexpr int kMaxThreads = 1024;
constexpr size_t kDynamicShared = 48 << 10, kDynamicSharedOptIn = 227 << 10;

// A point in a stream's work.
struct Marker {
  cudaStream_t stream = nullptr;
  bool done = false;
  int queries = 0;
  double seconds = 0;  // when it was reached
};

struct Operation {
  std::string name;
  std::function<cudaError_t()> work;  // empty: none
  std::shared_ptr<Marker> wait, mark;
};

// Bytes that a device or the host's pinned memory has.
struct Range {
  size_t bytes = 0;
  int device = 0;
  uint64_t handle = 0;  // of cuMemCreate; 0: of cudaMalloc
  bool accessible = true;
};

struct Settings {
  int64_t devices = 1, memory = int64_t{1} << 30, driver = 13000, descending = 0, threads = 0;
};

struct Machine {
  std::recursive_mutex mutex;
  Settings settings;
  cudaError_t sticky = cudaSuccess;
  std::string problems;  // behind problem_mutex
  std::mutex problem_mutex;

  std::vector<cudaStream_t> streams;  // the oldest first
  std::set<cudaEvent_t> events;
  cudaStream_t default_streams[kMaxDevices] = {};

  std::map<uintptr_t, Range> device_memory;      // alive
  std::map<uintptr_t, size_t> device_addresses;  // ever given out; none is used again
  std::map<uintptr_t, Range> pinned;
  std::map<uint64_t, std::pair<size_t, int>> physical;  // handle -> {bytes, device}
  std::map<uint64_t, int> references;
  uint64_t next_handle = 1;
  size_t used[kMaxDevices] = {};

  std::unordered_map<const void*, size_t> dynamic_shared;  // that kernels may have
};
Machine& machine();
using Lock = std::lock_guard<std::recursive_mutex>;

// A problem, and the call's error.
cudaError_t refuse(cudaError_t error, const std::string& text);
// The error that sticks to the device since work of a stream failed.
cudaError_t stick(cudaError_t error, const std::string& text);
int current_device();
bool has_devices();
cudaStream_t stream_of(cudaStream_t stream);  // the default stream for null; null for a dead one

// Runs a stream's work, all of it or up to a marker.
void run(cudaStream_t stream, const Marker* until = nullptr);
void run_all();
std::string kernel_name(const void* kernel);

// Runs all blocks of a kernel; empty, or what is wrong with it.
struct KernelWork {
  const void* kernel = nullptr;
  uint3 grid, block;
  size_t dynamic_shared = 0;
  const std::function<void()>* thread = nullptr;
  bool descending = false;
};
std::string run_kernel(const KernelWork& work, int threads);
// One block, on the calling OS thread.
std::string run_block(const KernelWork& work, int64_t index);

}  // namespace cuda_shim

struct CUstream_st {
  int device = 0;
  bool non_blocking = false;
  std::deque<cuda_shim::Operation> work;
};
struct CUevent_st {
  int device = 0;
  bool timing = false;
  std::shared_ptr<cuda_shim::Marker> marker;
};
