// Cases of gradient_check.h for the ops of experts: routers, their losses, rows of experts.
#pragma once

#include "ops/gradient_check.h"

namespace megatron::ops {

void add_expert_cases(std::vector<GradientCase>& cases);

}  // namespace megatron::ops
