// CUDA graphs of one stream's work.
#pragma once

#include <memory>

#include "device/cuda/gate.h"
#include "device/cuda/stream.h"
#include "device/recording.h"

namespace megatron::cuda {

// gate: of the stream's device; must outlive the recording.
std::unique_ptr<StreamRecording> record(CudaStream& stream, RecordingGate& gate);

// While it exists, the calling thread may map memory during a capture. The captured work must not
// allocate or release that memory.
class MemoryWhileRecording {
 public:
  MemoryWhileRecording();
  ~MemoryWhileRecording();
  MemoryWhileRecording(const MemoryWhileRecording&) = delete;
  MemoryWhileRecording& operator=(const MemoryWhileRecording&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace megatron::cuda
