// Counts the parameters of a model, by module.
#pragma once

#include <vector>

#include "models/stage.h"
#include "plan/plan.h"

namespace megatron::plan {

// Parameters of each span of a stage (on any device, including meta) by class: embedding, position,
// norm, attention, mlp, output; in the order of the spans. Canonical tensors are counted, so ranks
// that share a tensor count it once. A parameter of several spans counts in the first. Throws Error
// for a parameter of unknown class.
std::vector<ParameterCount> count_parameters(const models::Stage& stage);

}  // namespace megatron::plan
