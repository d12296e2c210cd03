#include "device/cuda/stream.h"

#include <utility>

#include "base/error.h"
#include "device/cuda/runtime_call.h"

namespace megatron::cuda {

EventPool::~EventPool() {
  for (const cudaEvent_t event : free_) cudaEventDestroy(event);
}

cudaEvent_t EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaSetDevice(device_), "cudaSetDevice");
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}

void EventPool::give_back(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

EventState::EventState(std::shared_ptr<EventPool> pool)
    : pool_(std::move(pool)), event_(pool_->take()) {}

EventState::~EventState() { pool_->give_back(event_); }

// A thread that has no device of its own would make a context on the first one.
bool EventState::reached() {
  check(cudaSetDevice(pool_->device()), "cudaSetDevice");
  const cudaError_t result = cudaEventQuery(event_);
  if (result == cudaErrorNotReady) return false;
  check(result, "the work before an event");
  return true;
}

void EventState::wait() {
  check(cudaSetDevice(pool_->device()), "cudaSetDevice");
  check(cudaEventSynchronize(event_), "the work before an event");
}

CudaStream::CudaStream(Device device, ThreadPool& pool, Arena& scratch)
    : Stream(device, pool, scratch, {DeviceKind::cuda, pool.size()}),
      events_(std::make_shared<EventPool>(device.index)) {
  check(cudaSetDevice(device.index), "cudaSetDevice");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

CudaStream::~CudaStream() {
  for (const auto& [key, told] : told_) told(true);
  cudaStreamSynchronize(stream_);
  states_.clear();
  cudaStreamDestroy(stream_);
}

cudaStream_t CudaStream::handle() const {
  check(cudaSetDevice(device().index), "cudaSetDevice");
  return stream_;
}

Event CudaStream::record() {
  auto state = std::make_shared<EventState>(events_);
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
  MG_ASSERT(!recording_);
  check(cudaStreamSynchronize(handle()), "the work queued on a stream");
  for (const auto& [key, told] : told_) told(false);
}

void CudaStream::tell(const void* key, const Told& told) { told_.insert_or_assign(key, told); }

void CudaStream::begin_recording() {
  MG_ASSERT(!recording_);
  check(cudaStreamBeginCapture(handle(), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
  recording_ = true;
}

cudaGraph_t CudaStream::end_recording() {
  MG_ASSERT(recording_);
  recording_ = false;
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(handle(), &graph), "cudaStreamEndCapture");
  return graph;
}

cudaGraph_t CudaStream::drop_recording() {
  recording_ = false;
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream_, &graph);
  cudaGetLastError();
  return graph;
}

}  // namespace megatron::cuda
