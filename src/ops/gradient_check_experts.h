// Cases of gradient_check.h of what experts are made of: routers, their losses, rows of experts.
#pragma once

#include "ops/gradient_check.h"

namespace megatron::ops {

void add_expert_cases(std::vector<GradientCase>& cases);

}  // namespace megatron::ops
