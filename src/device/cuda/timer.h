// Measures the time between two points of a stream.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "device/cuda/stream.h"
#include "device/cuda_plugin.h"

namespace megatron::cuda {

class StreamTimer final : public DeviceTimer {
 public:
  explicit StreamTimer(CudaStream& stream);
  ~StreamTimer() override;
  void begin() override;
  double end() override;
  bool exact() const override;

 private:
  class Gate;

  CudaStream& stream_;
  std::unique_ptr<Gate> gate_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace megatron::cuda
