#include "base/user_cache.h"

#include <cstdlib>

namespace megatron {
namespace {

std::string absolute_path_in(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && value[0] == '/' ? value : "";
}

}  // namespace

std::string user_cache_directory() {
  if (const std::string cache = absolute_path_in("XDG_CACHE_HOME"); !cache.empty())
    return cache + "/megatron";
  const std::string home = absolute_path_in("HOME");
  return home.empty() ? "" : home + "/.cache/megatron";
}

}  // namespace megatron
