// CUDA support is one shared object, libmegatron_cuda.so next to the program, built from src/*/cuda
// and src/comm/gpu/nccl, which opens NVIDIA's libraries on first use (cuda_library.h). It is opened
// when CUDA is first requested, so that one program runs on machines with and without a GPU, its
// driver and its libraries, and can report what it found. This room uses the shared object through
// the interface below; other rooms look up their functions with cuda_symbol().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/arena.h"
#include "device/device.h"
#include "device/recording.h"
#include "device/stream.h"

namespace megatron {

struct CudaDevice {
  std::string name;    // "NVIDIA H200"
  int64_t memory = 0;  // bytes
  int multiprocessors = 0;
  int major = 0, minor = 0;  // compute capability
  std::string pci;           // "0000:18:00.0"
};

// Times work queued on a stream with the device's own clock.
class DeviceTimer {
 public:
  virtual ~DeviceTimer() = default;
  // Times the work queued between the two calls. The device starts it when end() is called, so that
  // it never waits for the host in between, but after at most 50 ms, since the host blocks once a
  // device's queue of about a thousand launches is full.
  virtual void begin() = 0;
  // Returns the seconds once that work is done.
  virtual double end() = 0;
  // True if the last end() measured device time only: the host reached the end before the device
  // did.
  virtual bool exact() const = 0;
};

// Functions that the shared object provides for this room. Calls throw Error with CUDA's error
// text.
class CudaPlugin {
 public:
  virtual ~CudaPlugin() = default;
  virtual std::span<const CudaDevice> devices() const = 0;  // at least one
  // Formats "CUDA 13.0, driver 13.0, cuBLASLt 13.1.0".
  virtual std::string versions() const = 0;

  // Reserves device memory, mapped as it grows.
  virtual std::unique_ptr<AddressRange> reserve(Device device) const = 0;
  // Reserves host memory that the device copies from and to while it works.
  virtual std::unique_ptr<AddressRange> reserve_pinned() const = 0;
  virtual std::unique_ptr<Stream> make_stream(Device device, ThreadPool& pool,
                                              Arena& scratch) const = 0;
  // Makes a timer for a stream from make_stream(); the stream must outlive it.
  virtual std::unique_ptr<DeviceTimer> make_timer(Stream& stream) const = 0;
  // Begins to record the work of a stream of make_stream(), which must outlive the recording.
  virtual std::unique_ptr<StreamRecording> record(Stream& stream) const = 0;

  // Queues a copy on the stream of a CUDA device. Host memory that is read may be changed when the
  // call returns, except that of an offload arena, which must not change before the copy is done;
  // host memory that is written has its bytes once the stream has been synchronized.
  virtual void copy(void* to, const void* from, int64_t bytes, Stream& stream) const = 0;
  virtual void fill(void* to, int value, int64_t bytes, Stream& stream) const = 0;
  // The same between any combination of host and device, after all work queued on the device
  // before. Returns when the copy is done.
  virtual void copy_now(void* to, const void* from, int64_t bytes, Device device) const = 0;
};

// Result of the search: the open plugin, or null and the reason in one line ("no NVIDIA driver is
// loaded", ...). The first call opens the shared object and asks the driver for devices.
struct CudaState {
  const CudaPlugin* plugin = nullptr;
  std::string why_not;
  bool built = false;  // the shared object exists next to the program
};
const CudaState& cuda_state();

// Called before CUDA is requested if several ranks have a GPU each. Loads all kernels when CUDA is
// opened, unless the environment's CUDA_MODULE_LOADING says otherwise. By default CUDA loads each
// kernel on its first call and may then wait for the device: for NCCL calls that wait for other
// ranks, which may wait for this one.
void load_kernels_at_once();

// Throws Error with the reason and what to do if there is no plugin.
const CudaPlugin& cuda_plugin();

// Returns a function that the open shared object exports. Throws Error if it has none of that name.
void* cuda_symbol(const char* name);

}  // namespace megatron
