// Resources that this process may use on its machine: the processors of its affinity
// (sched_setaffinity, cpuset) within the CPU quota of its cgroup, and memory within its cgroup's
// limit. Containers and batch systems set these limits; a process that exceeds the CPU quota is
// throttled, one that exceeds the memory limit is killed.
#pragma once

#include <cstdint>
#include <string>

namespace megatron {

struct MachineLimits {
  int processors = 1;
  std::string processors_limit;   // "CPU affinity", or the file of a cgroup's quota; "": no limit
  int64_t memory = 0;             // bytes; 0: unknown
  std::string memory_limit_file;  // file of a cgroup's limit; "": the machine's memory
};

// Reads the limits that hold for this process now from a few small files. A cgroup's limits apply
// to everything below it, so every level up to the root of the hierarchy counts, in cgroup v1 and
// v2. A quota that is not a whole number of processors is rounded up. Missing or unreadable files
// set no limit. Tests pass another file system root.
MachineLimits machine_limits(const std::string& root = "/");

// Processors that machine_limits() allows.
int available_processors();
int64_t available_memory();
// Formats "24.1 GB of memory", or "200 MB of memory (its cgroup's limit, FILE)", for messages about
// memory that does not suffice.
std::string available_memory_text();

}  // namespace megatron
