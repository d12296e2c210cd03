// Build targets of the plugin, as set by CMake (cmake/cuda.cmake).
#pragma once

#include <string_view>

namespace megatron::cuda {

// File names requested from the loader:
// "libcublasLt.so.13,libnvrtc.so.13,libcudnn.so.9,libnccl.so.2". Empty: built without NVIDIA's
// libraries.
std::string_view built_libraries();
// Compute capabilities with machine code, "80,90a"; empty: all.
std::string_view built_code();

}  // namespace megatron::cuda
