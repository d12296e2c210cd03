// Seconds that the parts of a step take, as far as --timing-log-level asks for them.
#pragma once

#include <exception>

#include "base/clock.h"
#include "device/stream.h"
#include "report/log/step_times.h"

namespace megatron::training {

class StepTimer {
 public:
  // Of parts up to `level`. Borrowed.
  StepTimer(Stream& stream, int64_t level) : stream_(stream), level_(level) {}

  // Adds the time of the block that it lives in to a part of times(); the device's work is done at
  // both ends. Does nothing where the level is not asked for.
  class Block {
   public:
    Block(StepTimer& timer, double report::StepTimes::* part, int64_t level)
        : timer_(timer), part_(part), level_(level), begin_(timer.now(level)) {}
    ~Block() {
      try {
        timer_.times_.*part_ += timer_.now(level_) - begin_;
      } catch (const std::exception&) {  // a failure of the device, which its next call reports
      }
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

   private:
    StepTimer& timer_;
    double report::StepTimes::* part_;
    int64_t level_;
    double begin_;
  };

  void begin_step() { times_ = {}; }
  const report::StepTimes& times() const { return times_; }

 private:
  double now(int64_t level) {
    if (level_ < level) return 0;
    stream_.synchronize();
    return now_seconds();
  }

  Stream& stream_;
  int64_t level_;
  report::StepTimes times_;
};

}  // namespace megatron::training
