// NVIDIA's libraries, which the plugin opens when they are first used: one that is missing, or of
// another version, costs only what needs it. The plugin is not linked with them. Their functions are
// called by the names that NVIDIA's headers declare; files of kernels/cuda and comm/gpu/nccl define these
// as calls of what function_of() finds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "device/cuda_library.h"

namespace megatron::cuda {

enum class NvidiaLibrary { cublas_lt, cudnn, nccl, nvrtc };

// The library, opened by the first call in this process from the loader's own path, a toolkit or a
// Python package (device/cuda/library_search.h): the first file that can be used, else why not even
// one of them can. cuBLASLt and cuDNN come with NVRTC, which they open by name. Any thread. A plugin that is
// built without NVIDIA's libraries (build.h) has all of them, without a version and a path.
const CudaLibrary& opened(NvidiaLibrary library);

// The one of that name, of an empty name all; none for a plugin that is built without.
std::vector<CudaLibrary> opened_libraries(std::string_view name);

// A function of the opened library. Throws Error where the library cannot be used, or where this
// version of it has no such function.
void* find_function(NvidiaLibrary library, const char* name);
template <class Function>
Function* function_of(NvidiaLibrary library, const char* name) {
  return reinterpret_cast<Function*>(find_function(library, name));
}

// The three numbers of what a library calls its version: 130100 (cuBLASLt, NCCL, cuDNN 9), 8907
// (cuDNN 8).
struct LibraryVersion {
  int major = 0, minor = 0, patch = 0;

  static LibraryVersion of(long long number);
  std::string text() const;  // "13.1.0"
  bool operator==(const LibraryVersion&) const = default;
};

// Empty, or why a plugin built for that major version cannot use the library in this version, in
// one line with what to do.
std::string mismatch(NvidiaLibrary library, int built_major, const LibraryVersion& found);

}  // namespace megatron::cuda
