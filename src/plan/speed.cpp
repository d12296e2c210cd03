#include "plan/speed.h"

namespace megatron::plan {

Speed speed_of(const Plan& plan) {
  Speed speed;
  if (!plan.step_seconds || *plan.step_seconds <= 0) return speed;
  const double step = *plan.step_seconds;
  speed.tokens_per_second = static_cast<double>(plan.sequences * plan.length) / step;
  speed.run_seconds = static_cast<double>(plan.iterations) * step;
  if (!plan.flops.empty()) speed.flops_per_second = plan.flops.front().flops / step;
  if (speed.flops_per_second && plan.peak > 0)
    speed.peak_share = *speed.flops_per_second / plan.peak;
  return speed;
}

}  // namespace megatron::plan
