// Rates from NVIDIA's data sheets.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace megatron::plan {

struct DataSheet {
  std::string_view name;        // substring of a device's name
  double half_peak = 0;         // FLOP/s of dense bf16 and fp16 products with fp32 sums
  double memory_bandwidth = 0;  // bytes/s
};

// Looks up the name that the driver reports ("NVIDIA H200"); none for other devices.
std::optional<DataSheet> data_sheet(std::string_view device);

// The GPU that plans are made for on a machine without one: an H200, with 139 GiB of usable memory.
inline constexpr std::string_view kPlannedGpu = "H200";
inline constexpr int64_t kPlannedGpuMemory = int64_t{139} << 30;

struct PlannedGpu {
  std::string_view name;
  int64_t memory = 0;      // bytes that a process can use
  bool of_recipe = false;  // whether a recipe names it; otherwise it is kPlannedGpu
};
// Returns the GPU in the name of a recipe, such as "8xh100" in llama3_8b_8xh100, or else
// kPlannedGpu.
PlannedGpu planned_gpu(std::string_view recipe);

}  // namespace megatron::plan
