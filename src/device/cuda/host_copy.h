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

// Copies go through a few pinned buffers per GPU, made when the first copy needs them: the host
// fills or empties one while the GPU copies another, whereas CUDA would make one wait for the
// other. Thread-safe.
class HostCopies {
 public:
  static constexpr int64_t kBuffer = int64_t{8} << 20;  // bytes
  static constexpr int kBuffers = 4;                    // of each GPU
  // Copies up to this size are made directly by CUDA, which takes them within the call.
  static constexpr int64_t kSmall = int64_t{64} << 10;

  explicit HostCopies(int devices);
  ~HostCopies();

  // Copies from or to memory of the thread's GPU, in the order of the stream (null: the default
  // stream), which must not be recording. Returns false if neither address is this GPU's. When the
  // call returns, host memory that was read may be changed, and host memory that was written has
  // its bytes.
  bool copy(void* to, const void* from, int64_t bytes, int device, cudaStream_t stream);

 private:
  class Ring;
  Ring* ring(int device);  // null: the host has no pinned memory for it

  std::mutex mutex_;
  std::vector<std::unique_ptr<Ring>> rings_;  // by device
  std::vector<bool> refused_;                 // by device: the host let no memory be pinned for it
};

}  // namespace megatron::cuda
