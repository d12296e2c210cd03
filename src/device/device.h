// A compute device: its kind and index.
#pragma once

#include <string>
#include <string_view>

namespace megatron {

// reference: plain loops on host memory, the oracle. cpu: optimized kernels of the host. meta:
// shapes only, no data.
enum class DeviceKind { reference, cpu, cuda, meta };

std::string_view name(DeviceKind kind);

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;

  // True for memory that the host can read and write.
  bool is_host() const { return kind == DeviceKind::reference || kind == DeviceKind::cpu; }
  bool has_data() const { return kind != DeviceKind::meta; }
};

std::string to_string(Device device);  // "cpu", "cuda:1"

}  // namespace megatron
