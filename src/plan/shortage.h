// Explains what takes the memory of a run that does not fit.
#pragma once

#include <string>

#include "plan/plan.h"

namespace megatron::plan {

// Lists the memory of the fullest rank, the largest part first, and says whether the number of
// ranks on one machine (or GPU) is the cause: "each of the 16 ranks on this machine needs 1.2 GB:
// 0.9 GB of weights, gradients and optimizer state of 12 layers, 0.2 GB ...".
std::string cause_of_shortage(const Plan& plan);

}  // namespace megatron::plan
