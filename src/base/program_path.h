// Where the running program lies.
#pragma once

#include <string>

namespace megatron {

// Its file, links resolved. Throws Error where the system does not tell (/proc is not mounted).
std::string program_path();

}  // namespace megatron
