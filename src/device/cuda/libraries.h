// NVIDIA's libraries that were loaded with the shared object, and whether they are those that it
// was built with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megatron::cuda {

struct Library {
  std::string name;                     // "cuDNN"
  int built_major = 0;                  // that its headers were of
  int major = 0, minor = 0, patch = 0;  // of what was loaded
};

// Those of `built`, as "cuBLASLt 13,cuDNN 9,NCCL 2", that were loaded. The linker leaves out what
// nothing calls, and the system refuses a shared object that needs one that is not there.
std::vector<Library> loaded_libraries(std::string_view built);
// The number that a library tells as its version, taken apart: 130100 (cuBLASLt, NCCL, cuDNN 9),
// 8907 (cuDNN 8).
Library version_of(std::string_view name, int built_major, long long number);
// Empty, or which one is of another major version, or too old, in one line.
std::string mismatch(const std::vector<Library>& libraries);

}  // namespace megatron::cuda
