#include "base/machine_limits.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/divide.h"
#include "base/progress.h"
#include "base/text_parts.h"

namespace megatron {
namespace {

using Words = std::vector<std::string>;

Words words_of(const std::string& line) {
  std::istringstream stream(line);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Words of a file's first line; none if it cannot be read.
Words first_line(const std::string& path) {
  const auto lines = lines_of(path);
  return lines.empty() ? Words() : words_of(lines[0]);
}

bool in_list(std::string_view list, std::string_view name) {
  while (!list.empty())
    if (take_until(list, ',') == name) return true;
  return false;
}

// A cgroup hierarchy as this process sees it.
struct Hierarchy {
  std::string mount;  // directory where its root is mounted
  std::string group;  // this process's group, relative to mount: "" or "/a/b"

  // All folders from the process's group to the root.
  std::vector<std::string> folders() const {
    std::vector<std::string> all;
    for (std::string g = group; !g.empty(); g.resize(g.rfind('/'))) all.push_back(mount + g);
    all.push_back(mount);
    return all;
  }
};

// Finds the hierarchy of a controller ("memory", "cpu") of version 1, or for "" that of version 2.
// In a container the mount may show only a part of the hierarchy: /proc/self/mountinfo names its
// root.
std::optional<Hierarchy> hierarchy(const std::string& root, std::string_view controller) {
  std::string group;
  bool found = false;
  for (const std::string& line : lines_of(root + "proc/self/cgroup")) {
    // "4:memory:/group", "1:cpu,cpuacct:/group"; version 2: "0::/group"
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view list = std::string_view(line).substr(first + 1, second - first - 1);
    if (controller.empty() ? !list.empty() : !in_list(list, controller)) continue;
    group = line.substr(second + 1);
    found = true;
  }
  if (!found) return std::nullopt;
  for (const std::string& line : lines_of(root + "proc/self/mountinfo")) {
    // "31 23 0:26 ROOT MOUNT OPTIONS ... - TYPE SOURCE SUPER_OPTIONS"
    const Words words = words_of(line);
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    const std::string_view type = dash[1];
    if (controller.empty() ? type != "cgroup2" : type != "cgroup" || !in_list(dash[3], controller))
      continue;
    const std::string& shown = words[3];
    std::string below = group == "/" ? "" : group;
    if (shown != "/") below = below.starts_with(shown) ? below.substr(shown.size()) : "";
    if (!below.empty() && (below[0] != '/' || below.find("..") != below.npos)) below.clear();
    return Hierarchy{.mount = root + words[4].substr(1), .group = below};
  }
  return std::nullopt;
}

struct Limit {
  int64_t value = 0;
  std::string file;
};

void take(std::optional<Limit>& least, int64_t value, const std::string& file) {
  if (value > 0 && (!least || value < least->value)) least = Limit{value, file};
}

std::optional<Limit> memory_limit(const std::string& root) {
  std::optional<Limit> least;
  const auto read = [&](std::string_view controller, const std::string& name) {
    const auto groups = hierarchy(root, controller);
    if (!groups) return;
    for (const std::string& folder : groups->folders()) {
      const std::string file = folder + "/" + name;
      const Words words = first_line(file);  // bytes, or "max"
      if (words.size() == 1) take(least, parse_number<int64_t>(words[0]).value_or(0), file);
    }
  };
  read("", "memory.max");
  read("memory", "memory.limit_in_bytes");
  return least;
}

// Limit of processors, rounded up, and the file that sets it.
std::optional<Limit> processor_quota(const std::string& root) {
  std::optional<Limit> least;
  const auto add = [&](const Words& quota, const std::string& file) {
    if (quota.size() != 2) return;  // microseconds per period, or "max" or -1
    const int64_t time = parse_number<int64_t>(quota[0]).value_or(0),
                  period = parse_number<int64_t>(quota[1]).value_or(0);
    if (time > 0 && period > 0) take(least, ceil_div(time, period), file);
  };
  if (const auto groups = hierarchy(root, ""))
    for (const std::string& folder : groups->folders())
      add(first_line(folder + "/cpu.max"), folder + "/cpu.max");
  if (const auto groups = hierarchy(root, "cpu")) {
    for (const std::string& folder : groups->folders()) {
      Words quota = first_line(folder + "/cpu.cfs_quota_us");
      const Words period = first_line(folder + "/cpu.cfs_period_us");
      quota.insert(quota.end(), period.begin(), period.end());
      add(quota, folder + "/cpu.cfs_quota_us");
    }
  }
  return least;
}

// Number of processors that this process may run on; 0: unknown.
int affinity() {
  for (int processors = 1024; processors <= 1 << 20; processors *= 4) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(processors));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(processors));
    const bool known = ::sched_getaffinity(::getpid(), bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return count;
  }
  return 0;
}

}  // namespace

MachineLimits machine_limits(const std::string& root) {
  MachineLimits limits;
  const int64_t online = std::max<int64_t>(1, ::sysconf(_SC_NPROCESSORS_ONLN));
  const int64_t allowed = affinity();
  limits.processors = static_cast<int>(allowed > 0 ? allowed : online);
  limits.processors_limit = allowed > 0 && allowed < online ? "CPU affinity" : "";
  if (const auto quota = processor_quota(root); quota && quota->value < limits.processors) {
    limits.processors = static_cast<int>(quota->value);
    limits.processors_limit = quota->file;
  }
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  limits.memory = pages > 0 && size > 0 ? pages * size : 0;
  if (const auto limit = memory_limit(root);
      limit && (limits.memory == 0 || limit->value < limits.memory)) {
    limits.memory = limit->value;
    limits.memory_limit_file = limit->file;
  }
  return limits;
}

int available_processors() { return machine_limits().processors; }

int64_t available_memory() { return machine_limits().memory; }

std::string available_memory_text() {
  const MachineLimits limits = machine_limits();
  std::string text = format_bytes(static_cast<double>(limits.memory)) + " of memory";
  if (!limits.memory_limit_file.empty())
    text += " (its cgroup's limit, " + limits.memory_limit_file + ")";
  return text;
}

}  // namespace megatron
