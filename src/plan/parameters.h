// How many parameters a model has, and where.
#pragma once

#include <vector>

#include "models/stage.h"
#include "plan/plan.h"

namespace megatron::plan {

// Of each span of a stage (on any device, meta too) by class: embedding, position, norm, attention,
// mlp, output; in the order of the spans. Counts are of canonical tensors, so that ranks which
// share a tensor count it as one rank does. A parameter of several spans counts in the first.
// Throws Error for a parameter that no class is known for.
std::vector<ParameterCount> count_parameters(const models::Stage& stage);

}  // namespace megatron::plan
