// The stream of a CUDA device, for this room and for the kernels.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <memory>

#include "device/stream.h"

namespace megatron::cuda {

// A point in a CUDA stream.
class EventState final : public Event::State {
 public:
  explicit EventState(int device);  // of the device's
  ~EventState() override;
  bool reached() override;
  void wait() override;
  cudaEvent_t handle() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Work that is queued in order and runs beside the host's. wait() of another CUDA stream's event
// queues the waiting; of any other event the host waits. Destruction waits for the work.
class CudaStream final : public Stream {
 public:
  CudaStream(Device device, ThreadPool& pool, Arena& scratch);
  ~CudaStream() override;
  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;

  // The stream, its device made the calling thread's own.
  cudaStream_t handle() const;

  // What somebody keeps for this stream, a library's handle and plans: one slot a key, null at
  // first. Let go when the stream's work is done, before the stream is.
  std::shared_ptr<void>& state(const void* key) { return states_[key]; }

 private:
  cudaStream_t stream_ = nullptr;
  std::map<const void*, std::shared_ptr<void>> states_;
};

// Of streams of a CUDA device.
inline CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }
inline cudaStream_t handle_of(const Stream& stream) {
  return static_cast<const CudaStream&>(stream).handle();
}

}  // namespace megatron::cuda
