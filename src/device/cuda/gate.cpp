#include "device/cuda/gate.h"

#include "base/error.h"

namespace megatron::cuda {

std::unique_lock<std::shared_mutex> RecordingGate::record() {
  MG_ASSERT(recorder_ != std::this_thread::get_id());
  std::unique_lock lock(mutex_);
  recorder_ = std::this_thread::get_id();
  return lock;
}

void RecordingGate::recorded() { recorder_ = std::thread::id(); }

std::shared_lock<std::shared_mutex> RecordingGate::wait_for_device() {
  MG_ASSERT(recorder_ != std::this_thread::get_id());
  return std::shared_lock(mutex_);
}

}  // namespace megatron::cuda
