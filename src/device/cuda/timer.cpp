#include "device/cuda/timer.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/error.h"
#include "device/cuda/runtime_call.h"

namespace megatron::cuda {

// A gate that stops a stream: a function that the driver calls on its own thread and that blocks
// until the gate opens.
class StreamTimer::Gate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
    held_ = true;
  }
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    opened_.notify_all();
  }
  // True if nothing has passed the gate except while it was open.
  bool held() const {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  static void pass(void* gate) { static_cast<Gate*>(gate)->wait(); }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    held_ = opened_.wait_for(lock, std::chrono::milliseconds(50), [this] { return open_; });
  }

  mutable std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = true, held_ = true;
};

StreamTimer::StreamTimer(CudaStream& stream) : stream_(stream), gate_(std::make_unique<Gate>()) {
  stream.handle();  // makes its device current in this thread
  check(cudaEventCreate(&begin_), "cudaEventCreate");
  const cudaError_t made = cudaEventCreate(&end_);
  if (made != cudaSuccess) cudaEventDestroy(begin_);
  check(made, "cudaEventCreate");
}

StreamTimer::~StreamTimer() {
  gate_->open();
  cudaStreamSynchronize(stream_.handle());  // waits until all work has passed the gate
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
}

void StreamTimer::begin() {
  const cudaStream_t stream = stream_.handle();
  gate_->close();
  check(cudaLaunchHostFunc(stream, Gate::pass, gate_.get()), "cudaLaunchHostFunc");
  check(cudaEventRecord(begin_, stream), "cudaEventRecord");
}

bool StreamTimer::exact() const { return gate_->held(); }

double StreamTimer::end() {
  check(cudaEventRecord(end_, stream_.handle()), "cudaEventRecord");
  gate_->open();
  check(cudaEventSynchronize(end_), "the work that is timed");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
  return milliseconds * 1e-3;
}

}  // namespace megatron::cuda
