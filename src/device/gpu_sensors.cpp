#include "device/gpu_sensors.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <vector>

#include "device/driver_library.h"

namespace megatron {

// NVIDIA's functions as declared by its management library; 0 is success.
struct GpuSensors::Library {
  ~Library() {
    if (started) shutdown();
    if (handle != nullptr) dlclose(handle);
  }
  template <class... Parameters>
  bool find(int (*&function)(Parameters...), const char* name) {
    function = reinterpret_cast<int (*)(Parameters...)>(dlsym(handle, name));
    return function != nullptr;
  }
  bool find_all() {
    return find(start, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") &&
           find(by_pci, "nvmlDeviceGetHandleByPciBusId_v2") &&
           find(clock, "nvmlDeviceGetClockInfo") && find(most_clock, "nvmlDeviceGetMaxClockInfo") &&
           find(power, "nvmlDeviceGetPowerUsage") &&
           find(power_limit, "nvmlDeviceGetEnforcedPowerLimit") &&
           find(temperature, "nvmlDeviceGetTemperature");
  }

  void* handle = nullptr;
  bool started = false;
  void* device = nullptr;
  int (*start)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_pci)(const char* pci, void** device) = nullptr;
  int (*clock)(void* device, int kind, unsigned* mhz) = nullptr;
  int (*most_clock)(void* device, int kind, unsigned* mhz) = nullptr;
  int (*power)(void* device, unsigned* milliwatts) = nullptr;
  int (*power_limit)(void* device, unsigned* milliwatts) = nullptr;
  int (*temperature)(void* device, int sensor, unsigned* celsius) = nullptr;
};

GpuSensors::GpuSensors(const CudaDevice& device) : library_(std::make_unique<Library>()) {
  Library& l = *library_;
  l.handle = open_driver_library("libnvidia-ml.so.1");
  if (l.handle == nullptr) {
    why_not_ = "NVIDIA's management library (libnvidia-ml.so.1) is not found";
  } else if (!l.find_all()) {
    why_not_ = "NVIDIA's management library lacks the functions that read clocks and power";
  } else if (const int error = l.start(); error != 0) {
    why_not_ = fmt::format("NVIDIA's management library cannot be initialized (error {})", error);
  } else {
    l.started = true;
    const int found = l.by_pci(device.pci.c_str(), &l.device);
    if (found != 0)
      why_not_ = fmt::format("NVIDIA's management library does not know the GPU at {} (error {})",
                             device.pci, found);
  }
}

GpuSensors::~GpuSensors() = default;

std::optional<GpuReading> GpuSensors::read() const {
  if (!why_not_.empty()) return std::nullopt;
  constexpr int kMultiprocessors = 1, kChip = 0;
  const auto value = [](auto&& ask) {
    unsigned found = 0;
    return ask(&found) == 0 ? found : 0;
  };
  const Library& l = *library_;
  const auto clock = [&](auto* f) {
    return static_cast<int>(value([&](unsigned* v) { return f(l.device, kMultiprocessors, v); }));
  };
  const auto watts = [&](auto* f) {
    return value([&](unsigned* v) { return f(l.device, v); }) * 1e-3;
  };
  GpuReading reading{.clock = clock(l.clock),
                     .most_clock = clock(l.most_clock),
                     .power = watts(l.power),
                     .power_limit = watts(l.power_limit)};
  reading.temperature =
      static_cast<int>(value([&](unsigned* v) { return l.temperature(l.device, kChip, v); }));
  return reading;
}

std::string describe(std::span<const GpuReading> readings) {
  std::vector<std::string> parts;
  // Range over the readings that have this value.
  const auto range = [&](auto member, std::string_view what, std::string_view unit) {
    const auto known = [&](const GpuReading& r) { return r.*member > 0; };
    if (std::ranges::none_of(readings, known)) return false;
    auto kept = readings | std::views::filter(known);
    const auto [least, most] = std::ranges::minmax(kept, {}, member);
    parts.push_back(fmt::format("{} {:.0f} to {:.0f} {}", what, double(least.*member),
                                double(most.*member), unit));
    return true;
  };
  const GpuReading& last = readings.back();
  if (range(&GpuReading::clock, "SM clock", "MHz") && last.most_clock > 0)
    parts.back() += fmt::format(" (most {})", last.most_clock);
  if (range(&GpuReading::power, "power", "W") && last.power_limit > 0)
    parts.back() += fmt::format(" (limit {:.0f} W)", last.power_limit);
  if (last.temperature > 0) parts.push_back(fmt::format("{} C at the end", last.temperature));
  return parts.empty() ? "NVIDIA's management library does not report clocks or power"
                       : fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace megatron
