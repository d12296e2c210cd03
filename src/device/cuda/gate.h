// CUDA refuses to wait for a whole device while the work of one of its streams is recorded, and
// spoils the recording. Here the waiting comes after the recording.
#pragma once

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <thread>

namespace megatron::cuda {

// Of one device.
class RecordingGate {
 public:
  // Held by the thread that records; several recordings come one after another.
  std::unique_lock<std::shared_mutex> record();
  void recorded();  // before that lock is given up
  // Held while the whole device is waited for. Throws InternalError in the thread that records.
  std::shared_lock<std::shared_mutex> wait_for_device();

 private:
  std::shared_mutex mutex_;
  std::atomic<std::thread::id> recorder_;
};

}  // namespace megatron::cuda
