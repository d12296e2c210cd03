#include "device/cuda/stream.h"

#include "device/cuda/runtime_call.h"

namespace megatron::cuda {

EventState::EventState(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

EventState::~EventState() { cudaEventDestroy(event_); }

bool EventState::reached() {
  const cudaError_t result = cudaEventQuery(event_);
  if (result == cudaErrorNotReady) return false;
  check(result, "the work before an event");
  return true;
}

void EventState::wait() { check(cudaEventSynchronize(event_), "the work before an event"); }

CudaStream::CudaStream(Device device, ThreadPool& pool, Arena& scratch)
    : Stream(device, pool, scratch, {DeviceKind::cuda, pool.size()}) {
  check(cudaSetDevice(device.index), "cudaSetDevice");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(stream_);
  states_.clear();
  cudaStreamDestroy(stream_);
}

cudaStream_t CudaStream::handle() const {
  check(cudaSetDevice(device().index), "cudaSetDevice");
  return stream_;
}

Event CudaStream::record() {
  auto state = std::make_shared<EventState>(device().index);
  check(cudaEventRecord(state->handle(), handle()), "cudaEventRecord");
  return Event(std::move(state));
}

void CudaStream::wait(const Event& event) {
  if (event.state() == nullptr) return;
  const auto* const other = dynamic_cast<const EventState*>(event.state());
  if (other == nullptr) return event.wait_on_host();
  check(cudaStreamWaitEvent(handle(), other->handle(), 0), "cudaStreamWaitEvent");
}

void CudaStream::synchronize() {
  check(cudaStreamSynchronize(handle()), "the work queued on a stream");
}

}  // namespace megatron::cuda
