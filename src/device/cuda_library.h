// NVIDIA's libraries, as found by the CUDA plugin on this machine.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megatron {

struct CudaLibrary {
  std::string name;       // "cuBLASLt", "cuDNN", "NCCL" or "NVRTC"
  std::string version;    // "13.1.0"; empty: not found
  std::string path;       // of the file that was loaded or rejected; empty: not found
  std::string needed_by;  // "matrix products"
  bool required = false;  // CUDA cannot be used without it
  std::string why_not;    // why it cannot be used and what to do, in one line; empty: usable
};

// Looks for each library that the plugin uses, opens it and checks its version; libraries opened
// before are kept. Needs neither a GPU nor a driver. Empty if this program has no plugin, or one
// built without NVIDIA's libraries.
std::vector<CudaLibrary> cuda_libraries();

// Finds one of them by name. If cuda_libraries() lacks it: usable, without a version.
CudaLibrary cuda_library(std::string_view name);

}  // namespace megatron
