#include "report/log/interval.h"

#include <cmath>
#include <utility>

#include "base/error.h"

namespace megatron::report {

void Interval::add(const StepRecord& r) {
  const double seconds = r.seconds * static_cast<double>(r.steps);
  last_ = r;
  steps_ += r.steps;
  skipped_ += r.skipped;
  if (!std::isfinite(r.loss)) {
    ++not_finite_;
  } else if (const int64_t counted = r.steps - r.skipped; counted > 0) {
    losses_ += counted;
    loss_ += r.loss * static_cast<double>(counted);
  }
  seconds_ += seconds;
  tokens_ += r.tokens_per_second * seconds;
  flops_ += r.flops_per_second * seconds;
  share_ += r.peak_share * seconds;
  data_ += r.data_wait * seconds;
  communication_ += r.communication_wait * seconds;
  save_ += r.save_wait * seconds;
}

StepRecord Interval::take() {
  MG_ASSERT(steps_ > 0);
  const Interval all = std::exchange(*this, {});
  StepRecord mean = all.last_;
  mean.skipped = all.skipped_;
  mean.losses_not_finite = all.not_finite_;
  mean.mean_loss = all.loss_ / static_cast<double>(all.losses_);
  if (all.steps_ == mean.steps || !(all.seconds_ > 0)) {  // one record, or no time to use as weight
    mean.steps = all.steps_;
    return mean;
  }
  mean.steps = all.steps_;
  mean.seconds = all.seconds_ / static_cast<double>(all.steps_);
  mean.tokens_per_second = all.tokens_ / all.seconds_;
  mean.flops_per_second = all.flops_ / all.seconds_;
  mean.peak_share = mean.peak_share < 0 ? mean.peak_share : all.share_ / all.seconds_;
  mean.data_wait = all.data_ / all.seconds_;
  mean.communication_wait = all.communication_ / all.seconds_;
  mean.save_wait = all.save_ / all.seconds_;
  return mean;
}

}  // namespace megatron::report
