#include "device/cuda/libraries.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>

#include "base/error.h"

namespace megatron::cuda {
namespace {

// NCCL's communicators that do not block, and CUDA graphs of its calls.
constexpr int kLeastNcclMinor = 18;

// What the library says; it was loaded as one that this shared object needs. 0: it is not there.
long long version_number(std::string_view name) {
  if (name == "cuBLASLt" || name == "cuDNN") {
    const auto version = reinterpret_cast<size_t (*)()>(
        dlsym(RTLD_DEFAULT, name == "cuDNN" ? "cudnnGetVersion" : "cublasLtGetVersion"));
    return version == nullptr ? 0 : static_cast<long long>(version());
  }
  const auto version = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int number = 0;
  if (version != nullptr) version(&number);
  return number;
}

}  // namespace

Library version_of(std::string_view name, int built_major, long long number) {
  // Since cuDNN 9, each of them writes two digits for each of the lower parts.
  const long long unit = number >= 20000 ? 10000 : 1000;
  return {.name = std::string(name),
          .built_major = built_major,
          .major = static_cast<int>(number / unit),
          .minor = static_cast<int>(number % unit / 100),
          .patch = static_cast<int>(number % 100)};
}

std::vector<Library> loaded_libraries(std::string_view built) {
  std::vector<Library> libraries;
  while (!built.empty()) {
    const std::string_view one = built.substr(0, built.find(','));
    built.remove_prefix(std::min(built.size(), one.size() + 1));
    const size_t space = one.find(' ');
    MG_ASSERT(space != std::string_view::npos);
    const std::string_view name = one.substr(0, space);
    const int major = std::atoi(std::string(one.substr(space + 1)).c_str());
    const long long number = version_number(name);
    if (number != 0) libraries.push_back(version_of(name, major, number));
  }
  return libraries;
}

std::string mismatch(const std::vector<Library>& libraries) {
  for (const Library& l : libraries) {
    if (l.major != l.built_major)
      return fmt::format(
          "this build needs {0} {1}, and {2}.{3}.{4} was found; install version {1} or build again",
          l.name, l.built_major, l.major, l.minor, l.patch);
    if (l.name == "NCCL" && l.major == 2 && l.minor < kLeastNcclMinor)
      return fmt::format(
          "NCCL 2.{} or later is needed, and {}.{}.{} was found; install a later one",
          kLeastNcclMinor, l.major, l.minor, l.patch);
  }
  return "";
}

}  // namespace megatron::cuda
