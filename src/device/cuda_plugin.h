// CUDA comes as one shared object, libmegatron_cuda.so next to the program: what src/*/cuda and
// src/comm/gpu/nccl hold, which opens NVIDIA's libraries when they are first used (cuda_library.h). It is
// opened the first time that CUDA is asked for, so that one program runs on machines with and
// without a GPU, its driver and its libraries, and can say what it found. Of the shared object this room sees the interface below;
// other rooms find theirs by cuda_symbol().
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

// Times what is queued on a stream by the device's own clock.
class DeviceTimer {
 public:
  virtual ~DeviceTimer() = default;
  // What is queued between the two calls is timed. The device takes none of it up before end() is
  // called, so that it never waits for the host within, but waits no longer than 50 ms: the host
  // blocks when a device's queue, of about a thousand launches, is full.
  virtual void begin() = 0;
  // Seconds; returns when that work is done.
  virtual double end() = 0;
  // Of the last end(): none of the time is the host's, who came to the end soon enough.
  virtual bool exact() const = 0;
};

// What the shared object does for this room. Calls throw Error with CUDA's own words.
class CudaPlugin {
 public:
  virtual ~CudaPlugin() = default;
  virtual std::span<const CudaDevice> devices() const = 0;  // at least one
  // "CUDA 13.0, driver 13.0, cuBLASLt 13.1.0"
  virtual std::string versions() const = 0;

  // Device memory, mapped as it grows.
  virtual std::unique_ptr<AddressRange> reserve(Device device) const = 0;
  // Host memory that the device copies from and to during its work.
  virtual std::unique_ptr<AddressRange> reserve_pinned() const = 0;
  virtual std::unique_ptr<Stream> make_stream(Device device, ThreadPool& pool,
                                              Arena& scratch) const = 0;
  // Of a stream of make_stream(), which outlives it.
  virtual std::unique_ptr<DeviceTimer> make_timer(Stream& stream) const = 0;
  // Begins to record the work of a stream of make_stream(), which outlives it.
  virtual std::unique_ptr<StreamRecording> record(Stream& stream) const = 0;

  // Queued on the stream of a CUDA device. Host memory that is read may be changed when the call
  // returns, but that of an arena for offloading not before the copy is done; host memory that is
  // written has its bytes when the stream has been synchronized.
  virtual void copy(void* to, const void* from, int64_t bytes, Stream& stream) const = 0;
  virtual void fill(void* to, int value, int64_t bytes, Stream& stream) const = 0;
  // The same between any two of host and device, after all work that was queued on the device
  // before; done when the call returns.
  virtual void copy_now(void* to, const void* from, int64_t bytes, Device device) const = 0;
};

// What was found: the open plugin, or null and why in one line ("no NVIDIA driver is loaded", ...).
// The first call opens the shared object and asks the driver for devices.
struct CudaState {
  const CudaPlugin* plugin = nullptr;
  std::string why_not;
  bool built = false;  // the shared object lies next to the program
};
const CudaState& cuda_state();

// For ranks with a GPU each, before CUDA is asked for: kernels are loaded when CUDA is opened, unless
// the environment's CUDA_MODULE_LOADING says otherwise. CUDA would load each when it is first
// called, and may wait for the device then: for calls of NCCL that wait for other ranks, which may
// wait for this one.
void load_kernels_at_once();

// Throws Error saying why there is none and what to do.
const CudaPlugin& cuda_plugin();

// A function that the open shared object exports; throws Error when it has none of that name.
void* cuda_symbol(const char* name);

}  // namespace megatron
