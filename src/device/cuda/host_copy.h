// Copies between a GPU and pageable host memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace megatron::cuda {

// Throws Error if either side of a captured copy is not pinned: each replay would read or write
// host memory that may have been freed.
void require_pinned(const void* to, const void* from);

// Copies go through a few pinned buffers per GPU, which are allocated on first use: the host fills
// or empties one while the GPU copies another, whereas CUDA would serialize the two. Thread-safe.
class HostCopies {
 public:
  static constexpr int64_t kBuffer = int64_t{8} << 20;  // bytes
  static constexpr int kBuffers = 4;                    // per GPU
  // Copies up to this size are passed to CUDA directly, which reads the host memory within the
  // call.
  static constexpr int64_t kSmall = int64_t{64} << 10;

  explicit HostCopies(int devices);
  ~HostCopies();

  // Copies from or to memory of the thread's GPU, in the order of the stream (null: the default
  // stream), which must not be recording. Returns false if neither address is on this GPU. When the
  // call returns, host memory that was read may be changed, and host memory that was written has
  // its bytes.
  bool copy(void* to, const void* from, int64_t bytes, int device, cudaStream_t stream);

 private:
  class Ring;
  Ring* ring(int device);  // null if the host has no pinned memory for it

  std::mutex mutex_;
  std::vector<std::unique_ptr<Ring>> rings_;  // by device
  std::vector<bool> refused_;                 // by device: pinning host memory failed
};

}  // namespace megatron::cuda
