// Clock and power of a GPU, read from NVIDIA's management library (libnvidia-ml.so.1), which comes
// with the driver and is opened on demand.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "device/cuda_plugin.h"

namespace megatron {

struct GpuReading {
  int clock = 0, most_clock = 0;      // MHz of the multiprocessors: current and maximum
  double power = 0, power_limit = 0;  // W
  int temperature = 0;                // degrees Celsius
};

// Formats "SM clock 1755 to 1980 MHz (most 1980), power 412 to 690 W (limit 700 W), 61 C at the
// end" from at least one reading, in order of time. Omits values that no reading has.
std::string describe(std::span<const GpuReading> readings);

class GpuSensors {
 public:
  explicit GpuSensors(const CudaDevice& device);
  ~GpuSensors();
  // Empty, or the reason why nothing can be read, in one line.
  const std::string& why_not() const { return why_not_; }
  // None if it cannot be read; a figure that this GPU does not report is 0.
  std::optional<GpuReading> read() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
  std::string why_not_;
};

}  // namespace megatron
