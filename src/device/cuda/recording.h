// CUDA graphs of one stream's work.
#pragma once

#include <memory>

#include "device/cuda/gate.h"
#include "device/cuda/stream.h"
#include "device/recording.h"

namespace megatron::cuda {

// gate: of the stream's device; borrowed for the recording's life.
std::unique_ptr<StreamRecording> record(CudaStream& stream, RecordingGate& gate);

// While it lives, the calling thread may map memory although it records: the memory is none that the
// recorded work takes or gives back.
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
