#include "machine.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/dtype.h"
#include "memory.h"

namespace cuda_shim {
namespace {

std::string take_problems() {
  Machine& m = machine();
  const std::lock_guard lock(m.problem_mutex);
  return std::exchange(m.problems, {});
}

// Describes the live objects.
std::string leaks() {
  std::string text;
  for (const char* what : {"streams", "events", "graphs", "communicators", "bytes", "pinned"}) {
    if (shim_alive(what) != 0)
      text += fmt::format("not destroyed when the program ended: {} {}\n", shim_alive(what), what);
  }
  return text;
}

void at_end() {
  const std::string text = take_problems() + leaks();
  if (text.empty()) return;
  std::fprintf(stderr, "CUDA on the CPU:\n%s", text.c_str());
  std::fflush(nullptr);
  _exit(86);
}

// Initial value of a setting from an environment variable (cuda_shim/control.h).
int64_t told_first(const char* variable, int64_t usual) {
  const char* const given = std::getenv(variable);
  return given == nullptr ? usual : std::atoll(given);
}

thread_local int device_of_thread = 0;

}  // namespace

Machine& machine() {
  static Machine* const only = [] {
    auto* made = new Machine;  // outlives every static object that may still call
    Settings& settings = made->settings;
    settings.devices = told_first("CUDA_SHIM_DEVICES", settings.devices);
    settings.driver = told_first("CUDA_SHIM_DRIVER", settings.driver);
    settings.capability = told_first("CUDA_SHIM_CAPABILITY", settings.capability);
    settings.memory = told_first("CUDA_SHIM_MEMORY", settings.memory);
    settings.shared = told_first("CUDA_SHIM_SHARED", settings.shared);
    settings.pinned = told_first("CUDA_SHIM_PINNED", settings.pinned);
    settings.allocations = told_first("CUDA_SHIM_ALLOCATIONS", settings.allocations);
    settings.refuse_algorithms =
        told_first("CUDA_SHIM_REFUSE_ALGORITHMS", settings.refuse_algorithms);
    settings.cublaslt = told_first("CUDA_SHIM_CUBLASLT", settings.cublaslt);
    settings.fast_algorithm = told_first("CUDA_SHIM_FAST_ALGORITHM", settings.fast_algorithm);
    settings.fast_algorithm_step =
        told_first("CUDA_SHIM_FAST_ALGORITHM_STEP", settings.fast_algorithm_step);
    if (const char* const hang = std::getenv("CUDA_SHIM_HANG"); hang != nullptr)
      settings.hang = hang;
    std::atexit(at_end);
    return made;
  }();
  return *only;
}

void Mutex::pause() {
  constexpr std::chrono::microseconds kPause{200};  // other processes send no notification
  struct Whole {
    Mutex& mutex;
    int depth = 0;
    void unlock() {
      depth = mutex.depth_;
      for (int i = 0; i < depth; ++i) mutex.unlock();
    }
    void lock() {
      for (int i = 0; i < depth; ++i) mutex.lock();
    }
  } whole{*this};
  changed_.wait_for(whole, kPause);
}

void problem(const std::string& text) {
  Machine& m = machine();
  const std::lock_guard lock(m.problem_mutex);
  m.problems += text + "\n";
}

cudaError_t refuse(cudaError_t error, const std::string& text) {
  problem(text);
  return error;
}

cudaError_t stick(cudaError_t error, const std::string& text) {
  problem(text);
  machine().sticky = error;
  return error;
}

bool may_allocate() {
  int64_t& left = machine().settings.allocations;
  if (left <= 0) return false;
  --left;
  return true;
}

bool has_some_left() { return free_memory(current_device()) > 0 && may_allocate(); }

int current_device() { return device_of_thread; }
bool has_devices() {
  return machine().settings.devices > 0 && machine().settings.driver >= CUDART_VERSION;
}

unsigned short half_bits(float x) { return megatron::f16(x).bits; }
float half_value(unsigned short bits) {
  static const std::vector<float> values = [] {
    std::vector<float> all(1 << 16);
    for (size_t i = 0; i < all.size(); ++i) {
      megatron::f16 x;
      x.bits = static_cast<uint16_t>(i);
      all[i] = static_cast<float>(x);
    }
    return all;
  }();
  return values[bits];
}

}  // namespace cuda_shim

using namespace cuda_shim;

bool shim_set(const char* name, int64_t value) {
  const Lock lock(machine().mutex);
  Settings& s = machine().settings;
  const std::string_view what = name;
  int64_t* const at = what == "devices"             ? &s.devices
                      : what == "memory"            ? &s.memory
                      : what == "driver"            ? &s.driver
                      : what == "capability"        ? &s.capability
                      : what == "cublaslt"          ? &s.cublaslt
                      : what == "descending"        ? &s.descending
                      : what == "threads"           ? &s.threads
                      : what == "nccl_looks"        ? &s.nccl_looks
                      : what == "pinned"            ? &s.pinned
                      : what == "allocations"       ? &s.allocations
                      : what == "shared"            ? &s.shared
                      : what == "refuse_algorithms" ? &s.refuse_algorithms
                      : what == "refusal"           ? &s.refusal
                      : what == "fast_algorithm"    ? &s.fast_algorithm
                                                    : nullptr;
  if (at == nullptr) return false;
  *at = value;
  return true;
}

void shim_hang(const char* text) {
  const Lock lock(machine().mutex);
  machine().settings.hang = text;
}

const char* shim_problems() {
  thread_local std::string text;
  const Lock lock(machine().mutex);
  text = take_problems();
  machine().sticky = cudaSuccess;
  return text.c_str();
}

int64_t shim_alive(const char* name) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  const std::string_view what = name;
  int64_t sum = 0;
  if (what == "streams") return static_cast<int64_t>(m.streams.size());
  if (what == "events") return static_cast<int64_t>(m.events.size());
  if (what == "graphs") return static_cast<int64_t>(m.graphs.size() + m.executables.size());
  if (what == "communicators") return m.communicators;
  if (what == "pageable") return m.pageable_bytes;
  if (what == "to host") return m.to_host_bytes;
  if (what == "copies to host") return m.to_host_copies;
  if (what == "bytes") {
    for (const size_t used : m.used) sum += static_cast<int64_t>(used);
    return sum;
  }
  if (what == "pinned") {
    for (const auto& [at, range] : m.pinned) sum += static_cast<int64_t>(range.bytes);
    return sum;
  }
  return -1;
}

namespace {

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "the capture was not initiated in this stream"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
};
thread_local cudaError_t last_error = cudaSuccess;

ErrorText text_of(cudaError_t error) {
  for (const ErrorText& e : kErrors) {
    if (e.error == error) return e;
  }
  return {error, "cudaErrorUnknown", "unknown error"};
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return text_of(error).text; }
cudaError_t cudaGetLastError() {
  const Lock lock(machine().mutex);
  if (machine().sticky != cudaSuccess) return machine().sticky;
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  const Lock lock(machine().mutex);
  return machine().sticky != cudaSuccess ? machine().sticky : last_error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = static_cast<int>(machine().settings.driver);
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (machine().settings.driver < CUDART_VERSION) return cudaErrorInsufficientDriver;
  if (machine().settings.devices == 0) return cudaErrorNoDevice;
  *count = static_cast<int>(std::min<int64_t>(machine().settings.devices, kMaxDevices));
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) return error;
  if (device < 0 || device >= count)
    return refuse(cudaErrorInvalidDevice, fmt::format("there is no device {}", device));
  device_of_thread = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) return error;
  if (device < 0 || device >= count) return cudaErrorInvalidDevice;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = kMaxThreads; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = kDynamicShared; return cudaSuccess;
    case cudaDevAttrWarpSize: *value = 32; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = 132; return cudaSuccess;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = static_cast<int>(machine().settings.capability / 10);
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = static_cast<int>(machine().settings.capability % 10);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(machine().settings.shared);
      return cudaSuccess;
  }
  return refuse(cudaErrorInvalidValue, fmt::format("no device attribute {}", int{attribute}));
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  *p = {};
  const auto get = [device](int* to, cudaDeviceAttr a) {
    return cudaDeviceGetAttribute(to, a, device);
  };
  const cudaError_t error = get(&p->multiProcessorCount, cudaDevAttrMultiProcessorCount);
  if (error != cudaSuccess) return error;
  get(&p->major, cudaDevAttrComputeCapabilityMajor);
  get(&p->minor, cudaDevAttrComputeCapabilityMinor);
  get(&p->l2CacheSize, cudaDevAttrL2CacheSize);
  get(&p->warpSize, cudaDevAttrWarpSize);
  get(&p->maxThreadsPerBlock, cudaDevAttrMaxThreadsPerBlock);
  std::snprintf(p->name, sizeof p->name, "CUDA shim on the CPU");
  p->totalGlobalMem = static_cast<size_t>(machine().settings.memory);
  p->sharedMemPerBlock = kDynamicShared;
  p->sharedMemPerBlockOptin = static_cast<size_t>(machine().settings.shared);
  p->pciBusID = device;
  return cudaSuccess;
}
