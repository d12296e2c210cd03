// The small process between the launcher and the program of a rank. It sends the program's output
// and how it ended to `megatron launch`, passes signals on, and ends the program if launch is gone.
#pragma once

#include <string>
#include <vector>

#include "comm/processes.h"

namespace megatron::comm::launch {

// Runs the program (words[0], with its arguments) as the rank that the environment names. Returns
// its exit code, or 128 + signal if a signal ended it; 0 if launch has received the code (Open
// MPI's launcher takes a second to react to a code that others have already reported). Throws Error
// if the environment is not that of a rank of launch, or if launch cannot be reached.
int guard(const std::vector<std::string>& words, const Variable& variable);

}  // namespace megatron::comm::launch
