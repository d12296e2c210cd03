// Description of the device that every measurement prints.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/device.h"
#include "device/gpu_sensors.h"

namespace megatron::bench {

// "NVIDIA H200, CUDA 13.0, driver 13.0, ...", or "4 threads" of a host.
std::string device_text(Device device, int threads);

// FLOP/s of matrix products in a 16-bit type according to the GPU's data sheet; nullopt if unknown.
std::optional<double> data_sheet_of(Device device, DType type);
// " = 45.1% MFU (of the data sheet's 989 TFLOP/s)" for a 16-bit rate on a GPU whose data sheet is
// known; otherwise "".
std::string data_sheet_share(Device device, DType type, double flops_per_second);

// Samples clocks and power of a GPU during a measurement.
class GpuWatch {
 public:
  explicit GpuWatch(Device device);  // reports nothing for a host device
  void look();
  // "SM clock 1755 to 1980 MHz (most 1980), power 412 to 690 W (limit 700 W), 61 C", or the reason
  // why it is unavailable; "" for a host.
  std::string text() const;

 private:
  std::unique_ptr<GpuSensors> sensors_;
  std::vector<GpuReading> readings_;
};

}  // namespace megatron::bench
