// Out-of-memory errors of CUDA and NVIDIA's libraries.
#pragma once

#include <string_view>

#include "base/error.h"

namespace megatron::cuda {

// Memory that CUDA, or a library of NVIDIA's, failed to allocate for itself. Arenas report their
// own failures (device/arena.h).
class OutOfMemory : public Error {
 public:
  using Error::Error;
};
// Throws OutOfMemory with what failed, the free memory of the thread's GPU, and what to do.
[[noreturn]] void fail_for_memory(std::string_view failure);

}  // namespace megatron::cuda
