#include "device/cuda_plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/error.h"
#include "base/log_level.h"
#include "base/program_path.h"
#include "device/cuda_library.h"
#include "device/driver_library.h"

namespace megatron {
namespace {

// The shared object exports a function of this name and type, which creates its plugin. It returns
// null, and the reason as a null-terminated string, if there is no device or the program is another
// build.
constexpr const char* kMakePlugin = "megatron_cuda_plugin";
using MakePlugin = const CudaPlugin* (*)(const char* interface, char* why_not, size_t size);
// Fills in the library of that name, or all for an empty name; returns false if the program is
// another build.
constexpr const char* kFindLibraries = "megatron_cuda_libraries";
using FindLibraries = bool (*)(const char* interface, std::string_view name,
                               std::vector<CudaLibrary>& found);
// Sets the level of the plugin's separate logger to the program's.
constexpr const char* kSetLogLevel = "megatron_cuda_set_log_level";
using SetLogLevel = void (*)(log::Level lowest);

struct Opened {
  void* library = nullptr;
  CudaState state;
};

// The system's reason for not opening a shared object and, if one that it needs is missing, what to
// do: "libcudnn.so.9: cannot open shared object file: No such file or directory".
std::string refusal(const std::string& words) {
  const size_t colon = words.find(": cannot open shared object file");
  if (colon == std::string::npos) return words;
  return words.substr(0, colon) + " is not found; install it, or add its folder to LD_LIBRARY_PATH";
}

Opened open_plugin() {
  Opened opened;
  std::string path = program_path();
  path.replace(path.rfind('/') + 1, std::string::npos, "libmegatron_cuda.so");
  if (::access(path.c_str(), F_OK) != 0) {
    opened.state.why_not = "this build has no CUDA (cmake -DMEGATRON_CUDA=ON makes " + path + ")";
    return opened;
  }
  opened.state.built = true;
  open_driver_library("libcuda.so.1");  // CUDA's runtime only searches through the loader
  // Never closed: storages and streams use its functions until the program ends.
  opened.library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened.library == nullptr) {
    opened.state.why_not = refusal(dlerror());
    return opened;
  }
  const auto make = reinterpret_cast<MakePlugin>(dlsym(opened.library, kMakePlugin));
  if (make == nullptr) {
    opened.state.why_not = path + " belongs to a different program";
    return opened;
  }
  if (const auto set_level = reinterpret_cast<SetLogLevel>(dlsym(opened.library, kSetLogLevel)))
    set_level(log::lowest_level());
  std::array<char, 512> why_not{};
  opened.state.plugin = make(MEGATRON_CUDA_INTERFACE, why_not.data(), why_not.size());
  opened.state.why_not = why_not.data();
  return opened;
}

const Opened& opened() {
  static const Opened once = open_plugin();
  return once;
}

std::vector<CudaLibrary> find_libraries(std::string_view name) {
  std::vector<CudaLibrary> found;
  void* const library = opened().library;
  if (library == nullptr) return found;
  const auto find = reinterpret_cast<FindLibraries>(dlsym(library, kFindLibraries));
  if (find != nullptr) find(MEGATRON_CUDA_INTERFACE, name, found);
  return found;
}

}  // namespace

std::vector<CudaLibrary> cuda_libraries() { return find_libraries(""); }

CudaLibrary cuda_library(std::string_view name) {
  std::vector<CudaLibrary> found = find_libraries(name);
  return found.empty() ? CudaLibrary{.name = std::string(name)} : std::move(found.front());
}

const CudaState& cuda_state() { return opened().state; }

void load_kernels_at_once() { ::setenv("CUDA_MODULE_LOADING", "EAGER", 0); }

const CudaPlugin& cuda_plugin() {
  const CudaState& state = cuda_state();
  MG_CHECK(state.plugin != nullptr, "CUDA cannot be used: {}; use --device cpu", state.why_not);
  return *state.plugin;
}

void* cuda_symbol(const char* name) {
  cuda_plugin();
  void* const symbol = dlsym(opened().library, name);
  MG_CHECK(symbol != nullptr, "the CUDA plugin next to the program lacks '{}'; build it again",
           name);
  return symbol;
}

}  // namespace megatron
