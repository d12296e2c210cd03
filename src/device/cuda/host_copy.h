// Copies between a GPU and host memory that is not pinned.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace megatron::cuda {

// Of a copy that is recorded: each replay would read or write host memory that nobody keeps. Throws
// Error where either side is not pinned.
void require_pinned(const void* to, const void* from);

// They go through a few pinned buffers of each GPU, made when the first copy needs them: the host
// fills or empties one while the GPU copies another, where CUDA would let one wait for the other.
// Any thread.
class HostCopies {
 public:
  static constexpr int64_t kBuffer = int64_t{8} << 20;  // bytes
  static constexpr int kBuffers = 4;                    // of each GPU
  // What is no longer than this goes the way of CUDA, which takes it with the call.
  static constexpr int64_t kSmall = int64_t{64} << 10;

  explicit HostCopies(int devices);
  ~HostCopies();

  // Whether it was its to copy: from or to memory of the GPU, which is the thread's own, in the order
  // of the stream (null: the default stream), which does not record. Host memory that was read may be
  // changed when the call returns, and memory of the host that was written has its bytes then.
  bool copy(void* to, const void* from, int64_t bytes, int device, cudaStream_t stream);

 private:
  class Ring;
  Ring* ring(int device);  // null: the host has no pinned memory for it

  std::mutex mutex_;
  std::vector<std::unique_ptr<Ring>> rings_;  // by device
  std::vector<bool> refused_;                 // by device: the host let no memory be pinned for it
};

}  // namespace megatron::cuda
