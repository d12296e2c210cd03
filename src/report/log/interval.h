// Several steps combined into one record: rates and shares are time-weighted means; final values of
// a step (loss, learning rate, counts, memory) are those of the last one.
#pragma once

#include "report/log/record.h"

namespace megatron::report {

class Interval {
 public:
  void add(const StepRecord& record);
  StepRecord take();  // of the records added, at least one; starts over

 private:
  StepRecord last_;
  int64_t steps_ = 0, skipped_ = 0, not_finite_ = 0, losses_ = 0;
  double loss_ = 0;  // sum over `losses_` steps
  // Sums, each weighted by seconds.
  double seconds_ = 0, tokens_ = 0, flops_ = 0, share_ = 0, data_ = 0, communication_ = 0,
         save_ = 0;
};

}  // namespace megatron::report
