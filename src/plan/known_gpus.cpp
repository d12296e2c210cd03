#include "plan/known_gpus.h"

#include <array>
#include <cctype>
#include <utility>

namespace megatron::plan {
namespace {

// Longer names come before names that they contain.
constexpr std::array kSheets = {
    DataSheet{"GB200", 2500e12, 8.0e12},           DataSheet{"B200", 2250e12, 8.0e12},
    DataSheet{"GH200 144G", 989e12, 4.9e12},       DataSheet{"GH200", 989e12, 4.0e12},
    DataSheet{"H200 NVL", 835e12, 4.8e12},         DataSheet{"H200", 989e12, 4.8e12},
    DataSheet{"H100 PCIe", 756e12, 2.0e12},        DataSheet{"H100 NVL", 835e12, 3.9e12},
    DataSheet{"H100 80GB HBM3", 989e12, 3.35e12},  DataSheet{"A100-SXM4-80GB", 312e12, 2.039e12},
    DataSheet{"A100 80GB PCIe", 312e12, 1.935e12}, DataSheet{"A100", 312e12, 1.555e12},
    DataSheet{"L40S", 362e12, 0.864e12},           DataSheet{"L4", 121e12, 0.3e12}};

}  // namespace

std::optional<DataSheet> data_sheet(std::string_view device) {
  if (device.find("MIG ") != std::string_view::npos) return std::nullopt;  // only part of a GPU
  for (const DataSheet& sheet : kSheets) {
    const size_t at = device.find(sheet.name);
    if (at == std::string_view::npos) continue;
    // "L4" must not match "L40", nor "A100" match "A100X".
    const size_t end = at + sheet.name.size();
    if (end < device.size() && std::isalnum(static_cast<unsigned char>(device[end])) != 0) continue;
    return sheet;
  }
  return std::nullopt;
}

PlannedGpu planned_gpu(std::string_view recipe) {
  constexpr std::array<std::pair<std::string_view, PlannedGpu>, 3> kGpus = {
      {{"xa100", {"A100", int64_t{79} << 30, true}},
       {"xh100", {"H100", int64_t{79} << 30, true}},
       {"xh200", {kPlannedGpu, kPlannedGpuMemory, true}}}};
  for (const auto& [end, gpu] : kGpus)
    if (recipe.ends_with(end)) return gpu;
  return {kPlannedGpu, kPlannedGpuMemory};
}

}  // namespace megatron::plan
