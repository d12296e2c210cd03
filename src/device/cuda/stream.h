// The stream of a CUDA device, used by this room and by the kernels.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/stream.h"

namespace megatron::cuda {

// A thread-safe pool of a device's events, which record no times. Returned events are reused; the
// pool destroys them.
class EventPool {
 public:
  explicit EventPool(int device) : device_(device) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  int device() const { return device_; }
  cudaEvent_t take();
  void give_back(cudaEvent_t event);

 private:
  int device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

// Called after the host has waited for work of a stream; may throw if what the work waited for has
// failed. Called again with `ends` before the stream is destroyed, when it ensures that queued work
// ends, and then must not throw.
using OnWait = std::function<void(bool ends)>;

// Wait listeners of one stream, one per key. Thread-safe.
class WaitListeners {
 public:
  void add(const void* key, std::shared_ptr<const OnWait> on_wait);
  void add(const WaitListeners& others);
  void call(bool ends) const;

 private:
  using All = std::map<const void*, std::shared_ptr<const OnWait>>;
  All all() const;

  mutable std::mutex mutex_;
  All all_;
};

class CudaStream;

// State of a capture that several streams share: the one that began it, and those that wait for its
// events.
struct Capture {
  const CudaStream* first = nullptr;
  std::vector<CudaStream*> others;
  bool over = false;
};

// A point in a CUDA stream. The destructor returns its event to the pool: waits on it have been
// queued by then, and later records of the event do not change them.
class EventState final : public Event::State {
 public:
  // capture: the one that contains the point; may be null.
  EventState(std::shared_ptr<EventPool> pool, std::shared_ptr<Capture> capture,
             std::shared_ptr<const WaitListeners> wait_listeners);
  ~EventState() override;
  bool reached() override;
  void wait() override;
  cudaEvent_t handle() const { return event_; }
  const std::shared_ptr<Capture>& capture() const { return capture_; }
  const WaitListeners& wait_listeners() const { return *wait_listeners_; }

 private:
  std::shared_ptr<EventPool> pool_;
  std::shared_ptr<Capture> capture_;
  std::shared_ptr<const WaitListeners> wait_listeners_;
  cudaEvent_t event_;
};

// Work that is queued in order and overlaps with the host's. wait() on an event of another CUDA
// stream queues the wait; on any other event the host waits. An event of a finished capture counts
// as waited for by the streams that took part in it. The destructor waits for the work.
class CudaStream final : public Stream {
 public:
  CudaStream(Device device, ThreadPool& pool, Arena& scratch);
  ~CudaStream() override;
  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;
  bool recording() const override { return capture_ != nullptr; }

  // For device/cuda/recording.h. Between begin and end, work is captured as a graph, which the
  // caller destroys. It includes work of the streams that waited for this one meanwhile; they are
  // returned in `others`. drop() throws nothing. end_recording() returns null if the capture was
  // invalidated.
  void begin_recording();
  cudaGraph_t end_recording(std::vector<CudaStream*>& others);
  cudaGraph_t drop_recording();

  // Returns the stream after making its device current in the calling thread.
  cudaStream_t handle() const;

  // For code that makes this stream wait for others (other ranks): registers `call` for this
  // stream, for streams that wait for one of its events from now on, and for the events of each.
  void on_wait(const void* key, const OnWait& call);

  // Objects kept for this stream, such as a library's handle and plans: one slot per key, initially
  // null. Released when the stream's work is done, before the stream is destroyed.
  std::shared_ptr<void>& state(const void* key) { return states_[key]; }

 private:
  void leave(Capture& capture);

  cudaStream_t stream_ = nullptr;
  std::shared_ptr<Capture> capture_;  // null: not recording
  std::shared_ptr<EventPool> events_;
  std::map<const void*, std::shared_ptr<void>> states_;
  const std::shared_ptr<WaitListeners> wait_listeners_ = std::make_shared<WaitListeners>();
};

// Downcast for streams of a CUDA device.
inline CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }
inline cudaStream_t handle_of(const Stream& stream) {
  return static_cast<const CudaStream&>(stream).handle();
}

}  // namespace megatron::cuda
