#include "base/program_path.h"

#include <limits.h>
#include <unistd.h>

#include "base/error.h"

namespace megatron {

std::string program_path() {
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  MG_CHECK(n > 0 && n < static_cast<ssize_t>(sizeof path),
           "the program cannot find its own path in /proc/self/exe; is /proc mounted?");
  return {path, static_cast<size_t>(n)};
}

}  // namespace megatron
