// What takes the memory of a run that does not fit.
#pragma once

#include <string>

#include "plan/plan.h"

namespace megatron::plan {

// What the fullest rank holds, the largest part first, and whether it is the number of ranks on one
// machine (or GPU) that is too much: "each of the 16 ranks on this machine needs 1.2 GB: 0.9 GB of
// weights, gradients and optimizer state of 12 layers, 0.2 GB ...".
std::string cause_of_shortage(const Plan& plan);

}  // namespace megatron::plan
