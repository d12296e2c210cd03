// Checks in well under a minute whether this machine's device can be used: looks for the device,
// then runs a few of the calls that a training step consists of.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/cuda_library.h"
#include "device/device.h"

namespace megatron::selftest {

struct DeviceCheck {
  std::string name;  // "matrix product"
  bool passed = false;
  double seconds = 0;
  std::string result;   // "4 calls, error at most 0.12 of the tolerance; cuBLASLt 13.1.0"
  std::string why_not;  // why it failed
  bool hung = false;    // still running when the time was up
};

struct DeviceFindings {
  std::string device;  // "NVIDIA H200"; empty: no usable device
  int64_t memory = 0;  // bytes
  // CUDA only: compute capability such as "9.0", and the versions, such as "13.0", of the driver
  // and of the toolkit that the program was built with.
  std::string compute_capability, driver, cuda;
  std::vector<CudaLibrary> libraries;
  std::vector<DeviceCheck> checks;
  std::string what_to_do;  // why the device cannot be used, or which check failed, and the remedy

  bool usable() const { return !device.empty(); }
  bool passed() const;  // usable, and every check passed
};

struct DeviceCheckOptions {
  DeviceKind device = DeviceKind::cuda;  // cuda or cpu
  int threads = 1;                       // for the CPU
  double seconds = 50;                   // time after which a running check counts as hanging
  // Called on a separate thread with the findings up to a check that hangs, which counts as failed.
  // A hanging call cannot be stopped, so this function must end the process.
  std::function<void(const DeviceFindings&)> hung;
};

// Looks for the device and its libraries, then compares a fill, matrix products in fp32 and bf16,
// and attention forward and backward, by a library and by this program's kernels, with the
// reference. A failure or an exception fails only its own check.
DeviceFindings check_device(const DeviceCheckOptions& options);

}  // namespace megatron::selftest
