#include "device/cuda/stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/cuda/runtime_call.h"

namespace megatron::cuda {

// A thread without a current device would otherwise make a context on the first one.
EventPool::~EventPool() {
  cudaSetDevice(device_);
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

void WaitListeners::add(const void* key, std::shared_ptr<const OnWait> on_wait) {
  const std::lock_guard lock(mutex_);
  all_.insert_or_assign(key, std::move(on_wait));
}

void WaitListeners::add(const WaitListeners& others) {
  if (&others == this) return;
  const All theirs = others.all();
  const std::lock_guard lock(mutex_);
  for (const auto& [key, on_wait] : theirs) all_.insert_or_assign(key, on_wait);
}

void WaitListeners::call(bool ends) const {
  for (const auto& [key, on_wait] : all()) (*on_wait)(ends);
}

WaitListeners::All WaitListeners::all() const {
  const std::lock_guard lock(mutex_);
  return all_;
}

EventState::EventState(std::shared_ptr<EventPool> pool, std::shared_ptr<Capture> capture,
                       std::shared_ptr<const WaitListeners> wait_listeners)
    : pool_(std::move(pool)),
      capture_(std::move(capture)),
      wait_listeners_(std::move(wait_listeners)),
      event_(pool_->take()) {}

EventState::~EventState() { pool_->give_back(event_); }

bool EventState::reached() {
  check(cudaSetDevice(pool_->device()), "cudaSetDevice");
  const cudaError_t result = cudaEventQuery(event_);
  if (result == cudaErrorNotReady) {
    cudaGetLastError();  // clears the error: the result answers the question
    return false;
  }
  check(result, "the work before an event");
  return true;
}

void EventState::wait() {
  check(cudaSetDevice(pool_->device()), "cudaSetDevice");
  check(cudaEventSynchronize(event_), "the work before an event");
  wait_listeners_->call(false);
}

CudaStream::CudaStream(Device device, ThreadPool& pool, Arena& scratch)
    : Stream(device, pool, scratch, {DeviceKind::cuda, pool.size()}),
      events_(std::make_shared<EventPool>(device.index)) {
  check(cudaSetDevice(device.index), "cudaSetDevice");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

CudaStream::~CudaStream() {
  cudaSetDevice(device().index);
  wait_listeners_->call(true);
  cudaStreamSynchronize(stream_);
  states_.clear();
  cudaStreamSynchronize(stream_);  // other threads could record events here until now (waited.h)
  cudaStreamDestroy(stream_);
}

cudaStream_t CudaStream::handle() const {
  check(cudaSetDevice(device().index), "cudaSetDevice");
  return stream_;
}

Event CudaStream::record() {
  auto state = std::make_shared<EventState>(events_, capture_, wait_listeners_);
  check(cudaEventRecord(state->handle(), handle()), "cudaEventRecord");
  return Event(std::move(state));
}

void CudaStream::wait(const Event& event) {
  if (event.state() == nullptr) return;
  const auto* const other = dynamic_cast<const EventState*>(event.state());
  if (other == nullptr) return event.wait_on_host();
  if (const Capture* capture = other->capture().get(); capture != nullptr && capture->over) {
    MG_ASSERT(this == capture->first || std::ranges::count(capture->others, this) > 0);
    return;
  }
  check(cudaStreamWaitEvent(handle(), other->handle(), 0), "cudaStreamWaitEvent");
  wait_listeners_->add(other->wait_listeners());
  if (capture_ != nullptr || other->capture() == nullptr) return;
  capture_ = other->capture();
  capture_->others.push_back(this);
}

void CudaStream::synchronize() {
  MG_ASSERT(!recording());
  check(cudaStreamSynchronize(handle()), "the work queued on a stream");
  wait_listeners_->call(false);
}

void CudaStream::on_wait(const void* key, const OnWait& on_wait) {
  wait_listeners_->add(key, std::make_shared<const OnWait>(on_wait));
}

void CudaStream::begin_recording() {
  MG_ASSERT(!recording());
  check(cudaStreamBeginCapture(handle(), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
  capture_ = std::make_shared<Capture>(Capture{.first = this});
}

cudaGraph_t CudaStream::end_recording(std::vector<CudaStream*>& others) {
  MG_ASSERT(recording());
  for (CudaStream* other : capture_->others) wait(other->record());
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(handle(), &graph);
  others = capture_->others;
  leave(*std::exchange(capture_, nullptr));
  check(ended, "cudaStreamEndCapture");
  return graph;
}

cudaGraph_t CudaStream::drop_recording() {
  if (capture_ != nullptr) leave(*std::exchange(capture_, nullptr));
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream_, &graph);
  cudaGetLastError();
  return graph;
}

void CudaStream::leave(Capture& capture) {
  for (CudaStream* other : capture.others) other->capture_ = nullptr;
  capture.over = true;
}

}  // namespace megatron::cuda
