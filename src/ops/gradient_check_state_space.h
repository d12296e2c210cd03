// Cases of gradient_check.h for state spaces, and for what comes before them.
#pragma once

#include "ops/gradient_check.h"

namespace megatron::ops {

void add_state_space_cases(std::vector<GradientCase>& cases);

}  // namespace megatron::ops
