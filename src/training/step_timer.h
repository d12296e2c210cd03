// Times of a step's parts in seconds, as far as --timing-log-level requests them.
#pragma once

#include <exception>

#include "base/clock.h"
#include "device/stream.h"
#include "report/log/step_times.h"

namespace megatron::training {

class StepTimer {
 public:
  // Times the parts up to `level`. Borrowed.
  StepTimer(Stream& stream, int64_t level) : stream_(stream), level_(level) {}

  // Adds the time of the enclosing block to a part of times(); waits for the device at both ends.
  // Does nothing if the level is not requested.
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
