// Folders in which NVIDIA's libraries may be installed, besides those that the system's loader
// searches.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::cuda {

// Returns the value of an environment variable; empty if it is not set.
using Variable = std::function<std::string(const char* name)>;

// Existing folders, in search order, each once:
// - toolkits: below CUDA_HOME and CUDA_PATH, /usr/local/cuda, /usr/local/cuda-*, the latest version
//   first, /usr/local/nvidia, and CONDA_PREFIX;
// - Python packages, nvidia/*/lib and torch/lib, of VIRTUAL_ENV, CONDA_PREFIX, the installations
//   with python3 on the PATH, ~/.local, /usr/local, /usr, /opt/* and /opt/*/.venv.
// root replaces "/" in tests.
std::vector<std::string> library_folders(const Variable& variable, const std::string& root = "/");

// Folders of a list such as LD_LIBRARY_PATH.
std::vector<std::string> folders_of_path(std::string_view list);

// Files of other major versions of that library in a folder: "/f/libcudnn.so.8" for
// "libcudnn.so.9".
std::vector<std::string> other_versions(const std::string& folder, std::string_view soname);

}  // namespace megatron::cuda
