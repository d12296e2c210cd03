// Libraries of NVIDIA's driver, which containers often mount where the loader does not look.
#pragma once

#include <string>

namespace megatron {

// dlopen()'s handle of "libcuda.so.1" or "libnvidia-ml.so.1": by the loader, else from a folder that
// containers, WSL and some systems use; null: there is none. What is open is known to later calls of
// dlopen() by its name. root: in place of "/", for tests.
void* open_driver_library(const std::string& soname, const std::string& root = "/");

}  // namespace megatron
