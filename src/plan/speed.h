// Speed figures derived from a plan's step time.
#pragma once

#include <optional>

#include "plan/plan.h"

namespace megatron::plan {

struct Speed {  // a figure is only set if its inputs are known
  std::optional<double> tokens_per_second;
  std::optional<double> flops_per_second;  // by formula "model"
  std::optional<double> peak_share;
  std::optional<double> run_seconds;  // for all iterations
};

Speed speed_of(const Plan& plan);
// Uses the plan's assumed time, which must exist; the peak is that of the data sheet.
Speed assumed_speed(const Plan& plan);

}  // namespace megatron::plan
