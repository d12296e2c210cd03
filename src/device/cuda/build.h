// What the plugin was built for; CMake says it (cmake/cuda.cmake).
#pragma once

#include <string_view>

namespace megatron::cuda {

// Files that the loader is asked for: "libcublasLt.so.13,libnvrtc.so.13,libcudnn.so.9,libnccl.so.2".
// Empty: built without NVIDIA's libraries.
std::string_view built_libraries();
// Compute capabilities that there is machine code for, "80,90a"; empty: all.
std::string_view built_code();

}  // namespace megatron::cuda
