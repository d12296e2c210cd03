// The small process between the launcher and the program of a rank. It sends what the program
// writes to `megatron launch` and how it ended, passes signals on, and ends the program when launch
// is gone.
#pragma once

#include <string>
#include <vector>

#include "comm/processes.h"

namespace megatron::comm::launch {

// Runs the program (words[0], with its arguments) as the rank that the environment names; gives its
// exit code, 128 + signal when a signal ended it; 0 where launch has it (Open MPI's launcher takes a
// second to act on a code that others have reported already). Throws Error
// where the environment is not that of a rank of launch, or launch cannot be reached.
int guard(const std::vector<std::string>& words, const Variable& variable);

}  // namespace megatron::comm::launch
