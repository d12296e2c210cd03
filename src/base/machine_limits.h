// What this process may use of its machine: the processors of its affinity (sched_setaffinity,
// cpuset) within the CPU quota of its cgroup, and memory within its cgroup's limit. Containers and
// batch systems set these; what uses more of the first is throttled, of the second killed.
#pragma once

#include <cstdint>
#include <string>

namespace megatron {

struct MachineLimits {
  int processors = 1;
  std::string
      processors_limit;  // "CPU affinity", or the file of a cgroup's quota; "": all there are
  int64_t memory = 0;    // bytes; 0: not known
  std::string memory_limit_file;  // of a cgroup; "": it is what the machine has
};

// Of this process now: reads some small files. Limits of a cgroup hold for all below it, so each
// up to the root of the hierarchy counts, of version 1 and 2. A quota that is no whole number of
// processors is rounded up. Files that are missing or not understood set no limit.
//   root: of the file system, for tests
MachineLimits machine_limits(const std::string& root = "/");

// Of machine_limits().
int available_processors();
int64_t available_memory();
// "24.1 GB of memory", or "200 MB of memory (its cgroup's limit, FILE)": for messages about what
// does not fit.
std::string available_memory_text();

}  // namespace megatron
