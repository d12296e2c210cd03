#include "device/device.h"

#include <algorithm>

#include "base/error.h"
#include "device/cuda_plugin.h"
#include "device/stream.h"

namespace megatron {

std::string_view name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::reference: return "reference";
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::cuda: return "cuda";
    case DeviceKind::meta: return "meta";
  }
  MG_ASSERT(false);
}

std::string to_string(Device device) {
  if (device.kind != DeviceKind::cuda) return std::string(name(device.kind));
  return fmt::format("cuda:{}", device.index);
}

Runtime::Runtime(Device device, int threads, DeviceKind planned, int ranks)
    : device_(device),
      pool_(device.has_data() ? threads : std::min(threads, 1)),
      arenas_(device, ranks),
      stream_(device.kind == DeviceKind::cuda
                  ? cuda_plugin().make_stream(device, pool_, arenas_[MemoryClass::scratch])
                  : std::make_unique<HostStream>(
                        device, pool_, arenas_[MemoryClass::scratch],
                        Stream::Target{device.has_data() ? device.kind : planned, threads})) {}

}  // namespace megatron
