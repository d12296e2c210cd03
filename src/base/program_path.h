// Path of the running program.
#pragma once

#include <string>

namespace megatron {

// File of the running program, with links resolved. Throws Error if the system does not report it
// (/proc is not mounted).
std::string program_path();

}  // namespace megatron
