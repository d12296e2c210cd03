#include "plan/speed.h"

#include "plan/known_gpus.h"

namespace megatron::plan {

namespace {

Speed speed_at(const Plan& plan, double step, double peak) {
  Speed speed;
  speed.tokens_per_second = static_cast<double>(plan.tokens()) / step;
  speed.run_seconds = static_cast<double>(plan.iterations) * step;
  if (!plan.flops.empty()) speed.flops_per_second = plan.flops.front().flops / step;
  if (speed.flops_per_second && peak > 0) speed.peak_share = *speed.flops_per_second / peak;
  return speed;
}

}  // namespace

Speed speed_of(const Plan& plan) {
  if (!plan.step_seconds || *plan.step_seconds <= 0) return {};
  return speed_at(plan, *plan.step_seconds, plan.peak);
}

Speed assumed_speed(const Plan& plan) {
  const auto sheet = data_sheet(kPlannedGpu);
  return speed_at(plan, plan.assumed->step_seconds, plan.ranks * sheet->half_peak);
}

}  // namespace megatron::plan
