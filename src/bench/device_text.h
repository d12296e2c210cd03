// What every measurement says of the device that it is made on.
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

// FLOP/s of products in a 16-bit type by the data sheet of a GPU; none where it is not known.
std::optional<double> data_sheet_of(Device device, DType type);
// " = 45.1% MFU (of the data sheet's 989 TFLOP/s)" of a rate on a GPU whose data sheet is known, in
// 16 bits; else "".
std::string data_sheet_share(Device device, DType type, double flops_per_second);

// Clocks and power of a GPU while something runs.
class GpuWatch {
 public:
  explicit GpuWatch(Device device);  // of a host: says nothing
  void look();
  // "SM clock 1755 to 1980 MHz (most 1980), power 412 to 690 W (limit 700 W), 61 C", or why there
  // is none; "" of a host.
  std::string text() const;

 private:
  std::unique_ptr<GpuSensors> sensors_;
  std::vector<GpuReading> readings_;
};

}  // namespace megatron::bench
