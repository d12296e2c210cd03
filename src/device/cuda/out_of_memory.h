// What CUDA, or a library of NVIDIA's, says when it gets no memory.
#pragma once

#include <string_view>

#include "base/error.h"

namespace megatron::cuda {

// Memory that CUDA, or a library of NVIDIA's, did not get for itself. What arenas do not get, they
// tell themselves (device/arena.h).
class OutOfMemory : public Error {
 public:
  using Error::Error;
};
// Throws OutOfMemory: what failed, what the thread's GPU has left, and what to do.
[[noreturn]] void fail_for_memory(std::string_view failure);

}  // namespace megatron::cuda
