#include "device/driver_library.h"

#include <dlfcn.h>

namespace megatron {

void* open_driver_library(const std::string& soname, const std::string& root) {
  if (void* const handle = dlopen(soname.c_str(), RTLD_LAZY | RTLD_LOCAL)) return handle;
  for (const char* folder : {"usr/local/nvidia/lib64", "usr/local/nvidia/lib", "usr/lib64-nvidia",
                             "usr/lib/wsl/lib", "run/opengl-driver/lib"}) {
    const std::string path = root + folder + "/" + soname;
    if (void* const handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL)) return handle;
  }
  return nullptr;
}

}  // namespace megatron
