#include "report/log/machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>

#include "base/error.h"
#include "base/files.h"
#include "base/machine_limits.h"
#include "base/text_parts.h"

namespace megatron::report {
namespace {

// Content of a file of /proc; empty if it cannot be read.
std::string system_text(const char* path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

int64_t core_count() { return available_processors(); }

std::vector<std::string> command_line() {
  const std::string text = system_text("/proc/self/cmdline");
  std::vector<std::string> arguments;
  for (std::string_view rest = text; !rest.empty();) arguments.emplace_back(take_until(rest, '\0'));
  return arguments;
}

// Called in every step, so it allocates no memory.
int64_t resident_bytes() {
  std::array<char, 128> text;  // size resident shared ..., in pages
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const auto size =
      static_cast<size_t>(std::max<ssize_t>(::read(file, text.data(), text.size()), 0));
  ::close(file);
  const std::string_view all(text.data(), size);
  const size_t begin = all.find(' ');
  if (begin == all.npos) return 0;
  int64_t pages = 0;
  std::from_chars(all.data() + begin + 1, all.data() + all.size(), pages);
  return pages * ::sysconf(_SC_PAGESIZE);
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace megatron::report
