// Libraries of NVIDIA's driver, which containers often mount where the loader does not search.
#pragma once

#include <string>

namespace megatron {

// Returns the dlopen() handle of "libcuda.so.1" or "libnvidia-ml.so.1", found by the loader or in a
// folder that containers, WSL and some systems use; null if there is none. Later calls of dlopen()
// find an open library by its name. root replaces "/" in tests.
void* open_driver_library(const std::string& soname, const std::string& root = "/");

}  // namespace megatron
