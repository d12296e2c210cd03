// CUDA refuses to synchronize a whole device while one of its streams is being captured, and
// invalidates the capture. This gate delays the synchronization until the capture has ended.
#pragma once

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <thread>

namespace megatron::cuda {

// Recording gate for one device.
class RecordingGate {
 public:
  // Held by the capturing thread; captures run one after another.
  std::unique_lock<std::shared_mutex> record();
  void recorded();  // call before releasing that lock
  // Held while the whole device is synchronized. Throws InternalError in the capturing thread.
  std::shared_lock<std::shared_mutex> wait_for_device();

 private:
  std::shared_mutex mutex_;
  std::atomic<std::thread::id> recorder_;
};

}  // namespace megatron::cuda
