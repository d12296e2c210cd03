#pragma once

#include <chrono>

namespace megatron {

// Seconds of the steady clock.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace megatron
