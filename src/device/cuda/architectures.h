// Determines the GPUs that the code of this shared object can run on.
#pragma once

#include <string>
#include <string_view>

namespace megatron::cuda {

// built: compute capabilities that the code was built for, "80,90a"; empty: all. Code for 80 runs
// on 8.0 and later of major version 8, code for 90a only on 9.0, code for 100f on 10.0 and later of
// major version 10, code for 90+ptx on 9.0 and everything later.
bool runs_on(std::string_view built, int major, int minor);

// Empty, or one line with the reason why a GPU of that name and compute capability cannot be used,
// and what to do.
std::string no_code_for(std::string_view built, std::string_view gpu, int major, int minor);

}  // namespace megatron::cuda
