// Adds the time from construction to the end of the block.
#pragma once

#include <chrono>

namespace megatron::comm {

class CallTime {
 public:
  explicit CallTime(double& seconds) : seconds_(seconds) {}
  ~CallTime() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  CallTime(const CallTime&) = delete;
  CallTime& operator=(const CallTime&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace megatron::comm
