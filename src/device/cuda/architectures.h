// Which GPUs the code of this shared object runs on.
#pragma once

#include <string>
#include <string_view>

namespace megatron::cuda {

// built: compute capabilities as they are built for, "80,90a". Code for 80 runs on 8.0 and later of
// major version 8, that for 90a on 9.0 alone, that for 100f on 10.0 and later of major version 10,
// that for 90+ptx on 9.0 and whatever is later. Empty: on all.
bool runs_on(std::string_view built, int major, int minor);

// Empty, or why a GPU of that name and compute capability cannot be used, and what to do, in one line.
std::string no_code_for(std::string_view built, std::string_view gpu, int major, int minor);

}  // namespace megatron::cuda
