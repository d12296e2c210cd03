// NVIDIA's libraries, which the plugin opens on first use. A library that is missing or of another
// version disables only what needs it. The plugin is not linked with them. Their functions are
// called by the names that NVIDIA's headers declare; files of kernels/cuda and comm/gpu/nccl define
// these as calls through function_of().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "device/cuda_library.h"

namespace megatron::cuda {

enum class NvidiaLibrary { cublas_lt, cudnn, nccl, nvrtc };

// Returns the library, opened by the first call in this process from the loader's own path, a
// toolkit or a Python package (device/cuda/library_search.h): the first usable file, or the reason
// why none is. cuBLASLt and cuDNN come with NVRTC, which they open by name. Thread-safe. A plugin
// built without NVIDIA's libraries (build.h) reports all of them, without a version and a path.
const CudaLibrary& opened(NvidiaLibrary library);

// The library of that name, or all for an empty name; none if the plugin was built without them.
std::vector<CudaLibrary> opened_libraries(std::string_view name);

// A function of the opened library. Throws Error if the library cannot be used, or if this version
// of it has no such function.
void* find_function(NvidiaLibrary library, const char* name);
template <class Function>
Function* function_of(NvidiaLibrary library, const char* name) {
  return reinterpret_cast<Function*>(find_function(library, name));
}

// The three components of a library's version number: 130100 (cuBLASLt, NCCL, cuDNN 9), 8907 (cuDNN
// 8).
struct LibraryVersion {
  int major = 0, minor = 0, patch = 0;

  static LibraryVersion of(long long number);
  std::string text() const;  // "13.1.0"
  bool operator==(const LibraryVersion&) const = default;
};

// Empty, or one line with the reason why a plugin built for that major version cannot use this
// version of the library, and what to do.
std::string mismatch(NvidiaLibrary library, int built_major, const LibraryVersion& found);

}  // namespace megatron::cuda
