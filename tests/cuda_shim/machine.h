// The machine that the shim's runtime pretends: its devices, memory, streams and problems.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
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

// Work that returns cudaErrorNotReady waits for somebody outside its stream (other ranks of a
// collective) and is called again later; the stream stands still until then.
struct Operation {
  std::string name;
  std::function<cudaError_t()> work;  // empty: none
  std::shared_ptr<Marker> wait, mark;
  std::function<void()> queued = {};  // called when it is queued; of what is recorded, each time
};

// Bytes that a device or the host's pinned memory has.
struct Range {
  size_t bytes = 0;
  int device = 0;
  uint64_t handle = 0;  // of cuMemCreate; 0: of cudaMalloc
  bool accessible = true;
};

// What a stream records instead of queueing it, and those that wait for what it records
// (graphs.cpp). Its markers stand for those of each launch.
struct Recording {
  struct Branch {
    cudaStream_t stream = nullptr;
    std::vector<Operation> work;
  };
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;        // that began it
  std::vector<Branch> branches;  // the first one's stream began it
  bool spoiled = false;

  std::vector<Operation>& work_of(cudaStream_t stream);
};

struct Settings {
  int64_t devices = 1, memory = int64_t{2} << 30, driver = 13000, descending = 0, threads = 0,
          capability = 90, nccl_looks = 1, refuse_algorithms = 0, refusal = 15, fast_algorithm = -1,
          fast_algorithm_step = 0, cublaslt = 130100, pinned = std::numeric_limits<int64_t>::max(),
          allocations = std::numeric_limits<int64_t>::max(), shared = kDynamicSharedOptIn;
  std::string hang = {};  // part of the names of work that never ends
};

// Recursive. Whoever waits for work that others must queue lets them in meanwhile.
class Mutex {
 public:
  void lock() {
    mutex_.lock();
    ++depth_;
  }
  void unlock() {
    --depth_;
    mutex_.unlock();
  }
  // Leaves it altogether until something has changed or some time has passed.
  void pause();
  void changed() { changed_.notify_all(); }

 private:
  std::recursive_mutex mutex_;
  std::condition_variable_any changed_;
  int depth_ = 0;
};

struct Machine {
  Mutex mutex;
  uint64_t operations = 0;                      // that have run
  std::array<double, kMaxDevices> pretended{};  // seconds that each device's work took besides
  Settings settings;
  cudaError_t sticky = cudaSuccess;
  std::string problems;  // behind problem_mutex
  std::mutex problem_mutex;

  std::vector<cudaStream_t> streams;   // the oldest first
  std::vector<cudaStream_t> branches;  // of graphs under way
  std::set<cudaEvent_t> events;
  std::set<cudaGraph_t> graphs;
  std::set<cudaGraphExec_t> executables;
  int64_t communicators = 0;
  cudaStream_t default_streams[kMaxDevices] = {};

  std::map<uintptr_t, Range> device_memory;      // alive
  std::map<uintptr_t, size_t> device_addresses;  // ever given out; none is used again
  std::map<uintptr_t, Range> pinned;
  std::map<uint64_t, std::pair<size_t, int>> physical;  // handle -> {bytes, device}
  std::map<uint64_t, int> references;
  uint64_t next_handle = 1;
  size_t used[kMaxDevices] = {};
  int64_t pageable_bytes = 0, to_host_bytes = 0, to_host_copies = 0;  // that were asked for

  std::unordered_map<const void*, size_t> dynamic_shared;  // that kernels may have
  std::map<const void*, int64_t> launches;                 // of kernels; the first one loads it
};
Machine& machine();
using Lock = std::lock_guard<Mutex>;

// A problem, and the call's error.
cudaError_t refuse(cudaError_t error, const std::string& text);
// The error that sticks to the device since work of a stream failed.
cudaError_t stick(cudaError_t error, const std::string& text);
int current_device();
bool has_devices();
cudaStream_t stream_of(cudaStream_t stream);  // the default stream for null; null for a dead one

// Runs a stream's work, all of it or up to a marker. While that waits for somebody, all other
// streams go on, and other threads may call.
void run(cudaStream_t stream, const Marker* until = nullptr);
// The same as far as it goes without waiting; whether that was all.
bool advance(cudaStream_t stream, const Marker* until = nullptr);
void run_all(int device);
// All streams as far as they go, as those of a device do by themselves.
void advance_all();
std::string kernel_name(const void* kernel);
// True if one more allocation may be made.
bool may_allocate();
// The same of memory that CUDA or a library takes for itself of the current device, of which
// nothing is counted but that some is left.
bool has_some_left();

// What a call that waits, maps memory or the like may not do while work is recorded: the error,
// with the recording spoiled, or success. of_device: waits for all that the device does; else the
// call is only forbidden to the thread that records.
cudaError_t refuse_while_recording(const char* call, bool of_device = false);
// The same of a call with one stream, or with an event.
cudaError_t refuse_recording_stream(const char* call, cudaStream_t stream);
cudaError_t refuse_recorded_event(const char* call, cudaEvent_t event);
// Makes a stream wait for an event where one of both is recorded.
cudaError_t record_wait(cudaStream_t stream, cudaEvent_t event);
// Queues work on a stream that does not record.
cudaError_t queue(cudaStream_t stream, Operation operation);

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
// Its blocks have run: other OS threads may have what they took.
void rest_from_blocks();

}  // namespace cuda_shim

struct CUstream_st {
  int device = 0;
  bool non_blocking = false;
  std::deque<cuda_shim::Operation> work;
  std::shared_ptr<cuda_shim::Recording> recording = nullptr;
};
struct CUevent_st {
  int device = 0;
  bool timing = false;
  std::shared_ptr<cuda_shim::Marker> marker;
  bool recorded = false;                          // into a graph, instead of being queued
  std::weak_ptr<cuda_shim::Recording> recording;  // of that graph, while it goes on
};
