// Rates that NVIDIA's data sheets give.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace megatron::plan {

struct DataSheet {
  std::string_view name;        // what a device's name contains
  double half_peak = 0;         // FLOP/s of dense bf16 and fp16 products with sums in fp32
  double memory_bandwidth = 0;  // bytes/s
};

// By the name that the driver reports ("NVIDIA H200"); none for others.
std::optional<DataSheet> data_sheet(std::string_view device);

// The GPU that plans are made for where there is none: an H200, of whose memory 139 GiB can be had.
inline constexpr std::string_view kPlannedGpu = "H200";
inline constexpr int64_t kPlannedGpuMemory = int64_t{139} << 30;

}  // namespace megatron::plan
