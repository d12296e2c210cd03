// Ordered work on a device. A host stream runs each call before it returns; a CUDA stream queues
// it.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "device/arena.h"
#include "device/call_counts.h"
#include "device/device.h"

namespace megatron {

// A point in a stream, or in a communicator's progress. Default-constructed: already reached.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool reached() = 0;
    virtual void wait() = 0;  // blocks the calling thread
  };
  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool reached() const { return state_ == nullptr || state_->reached(); }
  void wait_on_host() const {
    if (state_ != nullptr) state_->wait();
  }
  State* state() const { return state_.get(); }  // null: already reached

 private:
  std::shared_ptr<State> state_;
};

// Observer of a stream's work (kernels/observer.h). The stream only holds the pointer.
class StreamWatcher {
 public:
  virtual ~StreamWatcher() = default;
};

class Stream {
 public:
  // Device kind and number of threads whose kernels' temporary memory is requested.
  struct Target {
    DeviceKind kind = DeviceKind::cpu;
    int threads = 1;
  };
  // scratch: arena of the kernels' temporary memory. It and the pool are borrowed and must outlive
  // the stream.
  Stream(Device device, ThreadPool& pool, Arena& scratch, Target target)
      : device_(device), pool_(pool), scratch_(scratch), target_(target) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const { return device_; }
  ThreadPool& pool() { return pool_; }
  Arena& scratch() { return scratch_; }
  // On meta: the target that the run is planned for. Otherwise the stream's own device kind and the
  // threads of its pool.
  const Target& target() const { return target_; }

  // Allows kernels to use faster algorithms whose last bits differ from run to run; off by default.
  void allow_nondeterministic(bool allow) { nondeterministic_ = allow; }
  bool nondeterministic() const { return nondeterministic_; }

  // Scratch bytes for one part of a library's attention backward, which runs in as few parts as fit
  // (kernels/cuda_scratch/library_attention.h).
  void limit_attention_workspace(int64_t bytes) { attention_workspace_ = bytes; }
  int64_t attention_workspace() const { return attention_workspace_; }

  // Counts of all calls so far.
  CallCounts& calls() { return calls_; }

  // Borrowed; null, the default, for no watcher.
  void watch(StreamWatcher* watcher) { watcher_ = watcher; }
  StreamWatcher* watcher() const { return watcher_; }

  virtual Event record() = 0;                 // reached when all work queued so far is done
  virtual void wait(const Event& event) = 0;  // later work of this stream starts after the event
  virtual void synchronize() = 0;  // blocks the host until all work queued so far is done
  // True if work is recorded instead of queued (device/recording.h). The host must not wait for it
  // then.
  virtual bool recording() const { return false; }

 private:
  Device device_;
  ThreadPool& pool_;
  Arena& scratch_;
  Target target_;
  bool nondeterministic_ = false;
  int64_t attention_workspace_ = int64_t{768} << 20;
  CallCounts calls_;
  StreamWatcher* watcher_ = nullptr;
};

// Stream of the reference, cpu and meta devices. CUDA's streams come from its plugin
// (device/cuda_plugin.h).
class HostStream final : public Stream {
 public:
  using Stream::Stream;
  Event record() override { return {}; }
  void wait(const Event& event) override { event.wait_on_host(); }
  void synchronize() override {}
};

// Compute resources of one rank.
class Runtime {
 public:
  // Throws Error for a device that does not exist, and for threads < 1. On meta no thread is
  // started: kernels only request the scratch memory that the kernels of `planned` would use with
  // this number of threads. ranks: number of ranks that compute in this process, which share its
  // address space.
  Runtime(Device device, int threads, DeviceKind planned = DeviceKind::cpu, int ranks = 1);

  Device device() const { return device_; }
  ThreadPool& pool() { return pool_; }
  Arenas& arenas() { return arenas_; }
  Arena& arena(MemoryClass memory_class) { return arenas_[memory_class]; }
  Stream& stream() { return *stream_; }

 private:
  Device device_;
  ThreadPool pool_;
  Arenas arenas_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace megatron
