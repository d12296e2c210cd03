#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "device/cuda/architectures.h"
#include "device/cuda/build.h"
#include "device/cuda/gate.h"
#include "device/cuda/host_copy.h"
#include "device/cuda/libraries.h"
#include "device/cuda/memory.h"
#include "device/cuda/recording.h"
#include "device/cuda/runtime_call.h"
#include "device/cuda/stream.h"
#include "device/cuda/timer.h"
#include "device/cuda/waited.h"
#include "device/cuda_plugin.h"

namespace megatron::cuda {
namespace {

std::string dotted(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

class Plugin final : public CudaPlugin {
 public:
  Plugin(std::vector<CudaDevice> devices, std::string versions)
      : devices_(std::move(devices)), versions_(std::move(versions)) {
    for (size_t i = 0; i < devices_.size(); ++i) {
      gates_.push_back(std::make_shared<RecordingGate>());
      ranges_.push_back(std::make_shared<RangeCount>());
    }
  }

  std::span<const CudaDevice> devices() const override { return devices_; }
  std::string versions() const override { return versions_; }

  std::unique_ptr<AddressRange> reserve(Device device) const override {
    check_device(device);
    return reserve_device_memory(device.index, gate(device),
                                 ranges_[static_cast<size_t>(device.index)]);
  }
  std::unique_ptr<AddressRange> reserve_pinned() const override {
    return reserve_pinned_memory(gates_);
  }
  std::unique_ptr<Stream> make_stream(Device device, ThreadPool& pool,
                                      Arena& scratch) const override {
    check_device(device);
    auto stream = std::make_unique<CudaStream>(device, pool, scratch);
    waited_.add(*stream);
    return stream;
  }
  std::unique_ptr<DeviceTimer> make_timer(Stream& stream) const override {
    return std::make_unique<StreamTimer>(cuda_stream(stream));
  }
  std::unique_ptr<StreamRecording> record(Stream& stream) const override {
    return cuda::record(cuda_stream(stream), *gate(stream.device()));
  }

  void copy(void* to, const void* from, int64_t bytes, Stream& stream) const override {
    const cudaStream_t handle = handle_of(stream);
    if (stream.recording()) {
      require_pinned(to, from);
    } else if (host_copies_.copy(to, from, bytes, stream.device().index, handle)) {
      return;
    }
    each_piece(to, from, bytes, [&](std::byte* target, const std::byte* source, int64_t size) {
      check(cudaMemcpyAsync(target, source, static_cast<size_t>(size), cudaMemcpyDefault, handle),
            "cudaMemcpyAsync");
    });
  }

  void fill(void* to, int value, int64_t bytes, Stream& stream) const override {
    if (bytes == 0) return;
    check(cudaMemsetAsync(to, value, static_cast<size_t>(bytes), handle_of(stream)),
          "cudaMemsetAsync");
  }

  void copy_now(void* to, const void* from, int64_t bytes, Device device) const override {
    check_device(device);
    check(cudaSetDevice(device.index), "cudaSetDevice");
    const auto waiting = gate(device)->wait_for_device();
    // A copy does not wait for non-blocking streams, and a copy to the device returns before its
    // bytes have arrived.
    waited_.wait(device.index);
    if (!host_copies_.copy(to, from, bytes, device.index, nullptr))
      each_piece(to, from, bytes, [](std::byte* target, const std::byte* source, int64_t size) {
        check(cudaMemcpy(target, source, static_cast<size_t>(size), cudaMemcpyDefault),
              "cudaMemcpy");
      });
    check(cudaStreamSynchronize(nullptr), "cudaMemcpy");
  }

 private:
  void check_device(Device device) const {
    MG_CHECK(device.index >= 0 && device.index < static_cast<int>(devices_.size()),
             "there is no GPU {}; this machine has {}, counted from 0", device.index,
             devices_.size());
  }

  // Calls f(to, from, bytes) for pieces that do not cross a boundary of pinned memory.
  template <class F>
  static void each_piece(void* to, const void* from, int64_t bytes, F&& f) {
    auto* target = static_cast<std::byte*>(to);
    const auto* source = static_cast<const std::byte*>(from);
    const auto left = [](const void* p) {
      return kPinnedPiece - static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) % kPinnedPiece);
    };
    while (bytes > 0) {
      const int64_t size = std::min({bytes, left(target), left(source)});
      f(target, source, size);
      target += size;
      source += size;
      bytes -= size;
    }
  }

  const std::shared_ptr<RecordingGate>& gate(Device device) const {
    return gates_[static_cast<size_t>(device.index)];
  }

  std::vector<CudaDevice> devices_;
  mutable WaitedStreams waited_{static_cast<int>(devices_.size())};
  std::vector<std::shared_ptr<RecordingGate>> gates_;  // by device
  std::vector<std::shared_ptr<RangeCount>> ranges_;    // by device
  mutable HostCopies host_copies_{static_cast<int>(devices_.size())};
  std::string versions_;
};

// Empty, or the reason why no GPU can be used, in one line.
std::string find_devices(std::vector<CudaDevice>& devices) {
  int driver = 0, runtime = 0, count = 0;
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const cudaError_t counted = cudaGetDeviceCount(&count);
  cudaDriverGetVersion(&driver);
  cudaGetLastError();
  if (driver == 0)
    return "no NVIDIA driver is loaded (libcuda.so.1 is not found): install it, or give the "
           "container "
           "the GPU (docker run --gpus all)";
  if (counted == cudaErrorInsufficientDriver)
    return fmt::format(
        "the NVIDIA driver supports CUDA {}, but this build needs CUDA {}: install a later "
        "driver{}",
        dotted(driver), dotted(runtime),
        driver / 1000 == runtime / 1000 - 1
            ? fmt::format(", or build with -DMEGATRON_CUDA_VERSION={}", driver / 1000)
            : "");
  if (counted == cudaErrorNoDevice || (counted == cudaSuccess && count == 0))
    return "the NVIDIA driver finds no GPU: check that nvidia-smi lists one, and that "
           "CUDA_VISIBLE_DEVICES, if set, names one";
  if (counted != cudaSuccess)
    return fmt::format("the NVIDIA driver cannot be initialized: {}", cudaGetErrorString(counted));
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p;
    check(cudaGetDeviceProperties(&p, i), "cudaGetDeviceProperties");
    devices.push_back(
        {.name = p.name,
         .memory = static_cast<int64_t>(p.totalGlobalMem),
         .multiprocessors = p.multiProcessorCount,
         .major = p.major,
         .minor = p.minor,
         .pci = fmt::format("{:04x}:{:02x}:{:02x}.0", p.pciDomainID, p.pciBusID, p.pciDeviceID)});
    const std::string missing = no_code_for(built_code(), p.name, p.major, p.minor);
    if (!missing.empty()) return missing;
  }
  return "";
}

std::string versions() {
  int driver = 0, runtime = 0;
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  std::string text = fmt::format("CUDA {}, driver {}", dotted(runtime), dotted(driver));
  if (const CudaLibrary& products = opened(NvidiaLibrary::cublas_lt); !products.version.empty())
    text += fmt::format(", {} {}", products.name, products.version);
  return text;
}

// The plugin, or the reason why there is none.
std::unique_ptr<Plugin> open_plugin(std::string& why_not) {
  std::vector<CudaDevice> devices;
  why_not = find_devices(devices);
  if (why_not.empty()) why_not = opened(NvidiaLibrary::cublas_lt).why_not;
  if (!why_not.empty()) return nullptr;
  return std::make_unique<Plugin>(std::move(devices), versions());
}

}  // namespace
}  // namespace megatron::cuda

extern "C" __attribute__((visibility("default"))) const megatron::CudaPlugin* megatron_cuda_plugin(
    const char* interface, char* why_not, size_t size) {
  using namespace megatron;
  struct Opened {
    std::string why_not;
    std::unique_ptr<cuda::Plugin> plugin;
  };
  if (std::string_view(interface) != MEGATRON_CUDA_INTERFACE) {
    std::snprintf(
        why_not, size, "%s",
        "libmegatron_cuda.so next to the program is from a different build; build both together");
    return nullptr;
  }
  // Constructed after CUDA is initialized, so that it is destroyed before CUDA.
  static const Opened opened = [] {
    Opened made;
    try {
      made.plugin = cuda::open_plugin(made.why_not);
    } catch (const std::exception& error) {
      made.why_not = error.what();
    }
    return made;
  }();
  std::snprintf(why_not, size, "%s", opened.why_not.c_str());
  return opened.why_not.empty() ? opened.plugin.get() : nullptr;
}

extern "C" __attribute__((visibility("default"))) bool megatron_cuda_libraries(
    const char* interface, std::string_view name, std::vector<megatron::CudaLibrary>& found) {
  if (std::string_view(interface) != MEGATRON_CUDA_INTERFACE) return false;
  found = megatron::cuda::opened_libraries(name);
  return true;
}

extern "C" __attribute__((visibility("default"))) void megatron_cuda_set_log_level(
    megatron::log::Level lowest) {
  megatron::log::set_level(lowest);
}
