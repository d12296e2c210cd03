// The simulated machine: its devices, memory, streams and problems.
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
  double seconds = 0;  // time at which it was reached
};

// Work that returns cudaErrorNotReady waits for something outside its stream (other ranks of a
// collective) and is called again later; until then the stream waits.
struct Operation {
  std::string name;
  std::function<cudaError_t()> work;  // empty: none
  std::shared_ptr<Marker> wait, mark;
  std::function<void()> queued = {};  // called when queued; if recorded, at each launch
};

// A range of device memory or of the host's pinned memory.
struct Range {
  size_t bytes = 0;
  int device = 0;
  uint64_t handle = 0;  // from cuMemCreate; 0: from cudaMalloc
  bool accessible = true;
};

// Work that a stream, and streams that wait for it, record instead of queueing (graphs.cpp). Its
// markers stand for those of each launch.
struct Recording {
  struct Branch {
    cudaStream_t stream = nullptr;
    std::vector<Operation> work;
  };
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;        // thread that began the recording
  std::vector<Branch> branches;  // the first belongs to the stream that began it
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

// Recursive. A thread that waits for work that others must queue releases it meanwhile.
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
  // Releases it completely until something has changed or some time has passed.
  void pause();
  void changed() { changed_.notify_all(); }

 private:
  std::recursive_mutex mutex_;
  std::condition_variable_any changed_;
  int depth_ = 0;
};

struct Machine {
  Mutex mutex;
  uint64_t operations = 0;                      // operations that have run
  std::array<double, kMaxDevices> pretended{};  // seconds added to each device's clock
  Settings settings;
  cudaError_t sticky = cudaSuccess;
  std::string problems;  // guarded by problem_mutex
  std::mutex problem_mutex;

  std::vector<cudaStream_t> streams;   // oldest first
  std::vector<cudaStream_t> branches;  // streams of graphs in flight
  std::set<cudaEvent_t> events;
  std::set<cudaGraph_t> graphs;
  std::set<cudaGraphExec_t> executables;
  int64_t communicators = 0;
  cudaStream_t default_streams[kMaxDevices] = {};

  std::map<uintptr_t, Range> device_memory;      // live ranges
  std::map<uintptr_t, size_t> device_addresses;  // all addresses ever used; none is used again
  std::map<uintptr_t, Range> pinned;
  std::map<uint64_t, std::pair<size_t, int>> physical;  // handle -> {bytes, device}
  std::map<uint64_t, int> references;
  uint64_t next_handle = 1;
  size_t used[kMaxDevices] = {};
  int64_t pageable_bytes = 0, to_host_bytes = 0, to_host_copies = 0;  // requested so far

  std::unordered_map<const void*, size_t> dynamic_shared;  // per-kernel limits
  std::map<const void*, int64_t> launches;                 // per kernel; the first one loads it
};
Machine& machine();
using Lock = std::lock_guard<Mutex>;

// Adds a problem and returns the call's error.
cudaError_t refuse(cudaError_t error, const std::string& text);
// Makes the error of a stream's work stick to the device.
cudaError_t stick(cudaError_t error, const std::string& text);
int current_device();
bool has_devices();
cudaStream_t stream_of(cudaStream_t stream);  // the default stream for null; null for a dead one

// Runs a stream's work, all of it or up to a marker. While that work waits, other streams continue
// and other threads may call.
void run(cudaStream_t stream, const Marker* until = nullptr);
// Runs the stream's work as far as possible without waiting. Returns true if that was all.
bool advance(cudaStream_t stream, const Marker* until = nullptr);
void run_all(int device);
// Advances all streams as far as possible, as a device does on its own.
void advance_all();
std::string kernel_name(const void* kernel);
// True if one more allocation is allowed.
bool may_allocate();
// The same for memory that CUDA or a library allocates for itself on the current device. Only
// checks that some memory is left, without counting it.
bool has_some_left();

// For calls that must not be made during recording, such as waits and mappings: returns the error
// and invalidates the recording, or returns success. of_device: the call waits for the whole
// device; otherwise it is only forbidden on the recording thread.
cudaError_t refuse_while_recording(const char* call, bool of_device = false);
// The same for a call with one stream or with an event.
cudaError_t refuse_recording_stream(const char* call, cudaStream_t stream);
cudaError_t refuse_recorded_event(const char* call, cudaEvent_t event);
// Makes a stream wait for an event when either is recorded.
cudaError_t record_wait(cudaStream_t stream, cudaEvent_t event);
// Queues work on a stream that does not record.
cudaError_t queue(cudaStream_t stream, Operation operation);

// Runs all blocks of a kernel. Returns an empty string or a description of the fault.
struct KernelWork {
  const void* kernel = nullptr;
  uint3 grid, block;
  size_t dynamic_shared = 0;
  const std::function<void()>* thread = nullptr;
  bool descending = false;
};
std::string run_kernel(const KernelWork& work, int threads);
// Runs one block on the calling OS thread.
std::string run_block(const KernelWork& work, int64_t index);
// Called when the blocks have run: other OS threads may reuse their resources.
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
  bool recorded = false;                          // into a graph instead of being queued
  std::weak_ptr<cuda_shim::Recording> recording;  // that graph's recording, while in progress
};
