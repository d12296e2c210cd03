// The stream of a CUDA device, for this room and for the kernels.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/stream.h"

namespace megatron::cuda {

// Events of a device, without times, for any number of threads: those that are given back are given
// out again. Destroyed with it.
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

// Called when the host has waited for work of a stream, and may throw: what the work waited for
// did not come. Again before the stream's end, with `ends`, when it makes sure that what was queued
// comes to an end, and throws nothing.
using OnWait = std::function<void(bool ends)>;

// Those of one stream, one a key. Any thread.
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

// What streams record together: the one that began it, and those that wait for its events.
struct Capture {
  const CudaStream* first = nullptr;
  std::vector<CudaStream*> others;
  bool over = false;
};

// A point in a CUDA stream. Gives its event back to the pool at its end: who waits for it then has
// queued the waiting, which later records of the event do not change.
class EventState final : public Event::State {
 public:
  // capture: that the point lies in; null: none.
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

// Work that is queued in order and overlaps with the host's. wait() of another CUDA stream's event
// queues the waiting; of any other event the host waits. An event of a recording that is over has
// been waited for by the streams that took part in it. Destruction waits for the work.
class CudaStream final : public Stream {
 public:
  CudaStream(Device device, ThreadPool& pool, Arena& scratch);
  ~CudaStream() override;
  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;
  bool recording() const override { return capture_ != nullptr; }

  // What device/cuda/recording.h needs: from begin to end, work is recorded as a graph, which the
  // caller destroys, with that of the streams that waited for this one meanwhile; `others` gets
  // them. drop: throws nothing, null where the recording was spoiled.
  void begin_recording();
  cudaGraph_t end_recording(std::vector<CudaStream*>& others);
  cudaGraph_t drop_recording();

  // The stream, its device made the calling thread's own.
  cudaStream_t handle() const;

  // For whoever makes this stream wait for others (other ranks): it is called for this stream, of those
  // that wait for an event of it from now on, and of events of each.
  void on_wait(const void* key, const OnWait& call);

  // What somebody keeps for this stream, a library's handle and plans: one slot a key, null at
  // first. Let go when the stream's work is done, before the stream is.
  std::shared_ptr<void>& state(const void* key) { return states_[key]; }

 private:
  void leave(Capture& capture);

  cudaStream_t stream_ = nullptr;
  std::shared_ptr<Capture> capture_;  // null: it records nothing
  std::shared_ptr<EventPool> events_;
  std::map<const void*, std::shared_ptr<void>> states_;
  const std::shared_ptr<WaitListeners> wait_listeners_ = std::make_shared<WaitListeners>();
};

// Of streams of a CUDA device.
inline CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }
inline cudaStream_t handle_of(const Stream& stream) {
  return static_cast<const CudaStream&>(stream).handle();
}

}  // namespace megatron::cuda
