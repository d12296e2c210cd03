#include "bench/device_text.h"

#include <fmt/core.h>

#include "device/cuda_plugin.h"
#include "plan/known_gpus.h"

namespace megatron::bench {
namespace {

const CudaDevice& gpu(Device device) {
  return cuda_plugin().devices()[static_cast<size_t>(device.index)];
}

}  // namespace

std::string device_text(Device device, int threads) {
  if (device.kind == DeviceKind::cuda)
    return fmt::format("{}, {}", gpu(device).name, cuda_plugin().versions());
  return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
}

std::optional<double> data_sheet_of(Device device, DType type) {
  if (device.kind != DeviceKind::cuda || size_of(type) != 2) return std::nullopt;
  const auto sheet = plan::data_sheet(gpu(device).name);
  return sheet ? std::optional(sheet->half_peak) : std::nullopt;
}

std::string data_sheet_share(Device device, DType type, double flops_per_second) {
  const auto peak = data_sheet_of(device, type);
  if (!peak) return "";
  return fmt::format(" = {:.1f}% MFU (of the data sheet's {:.0f} TFLOP/s)",
                     100 * flops_per_second / *peak, *peak * 1e-12);
}

GpuWatch::GpuWatch(Device device) {
  if (device.kind == DeviceKind::cuda) sensors_ = std::make_unique<GpuSensors>(gpu(device));
}

void GpuWatch::look() {
  if (sensors_ == nullptr) return;
  if (const auto reading = sensors_->read()) readings_.push_back(*reading);
}

std::string GpuWatch::text() const {
  if (sensors_ == nullptr) return "";
  if (readings_.empty()) return "clocks and power unavailable: " + sensors_->why_not();
  return describe(readings_);
}

}  // namespace megatron::bench
