#include "base/processor.h"

#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/text_parts.h"

namespace megatron {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::string value_in(const char* path, const std::string& name) {
  try {
    return cpuinfo_value(read_file(path), name);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

std::string cpuinfo_value(const std::string& text, const std::string& name) {
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = take_until(rest, '\n');
    const size_t colon = line.find(':');
    if (colon != line.npos && trimmed(line.substr(0, colon)) == name)
      return std::string(trimmed(line.substr(colon + 1)));
  }
  return {};
}

std::string cpu_name() { return value_in("/proc/cpuinfo", "model name"); }

std::string cpu_features() {
  const std::string x86 = value_in("/proc/cpuinfo", "flags");
  return x86.empty() ? value_in("/proc/cpuinfo", "Features") : x86;
}

std::string allowed_processors() { return value_in("/proc/self/status", "Cpus_allowed_list"); }

}  // namespace megatron
