#include "plan/plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "plan/figures.h"

namespace megatron::plan {

int64_t Plan::parameter_count() const {
  int64_t sum = 0;
  for (const ParameterCount& p : parameters) sum += p.count;
  return sum;
}

namespace {

int64_t offloaded(const MemoryUse& use) {
  return use.arenas[static_cast<size_t>(MemoryClass::offload)];
}

}  // namespace

// Where not all ranks are here, each may be of the stage that holds the most.
std::string Plan::memory_text() const {
  const std::string bytes = bytes_text(static_cast<double>(machine));
  return cgroup.empty() ? "the machine has " + bytes
                        : fmt::format("its cgroup ({}) allows {}", cgroup, bytes);
}

int64_t Plan::rank_bytes() const {
  int64_t most = memory.arena_bytes() + memory.host;
  for (const MemoryUse& stage : stages) most = std::max(most, stage.arena_bytes() + stage.host);
  return most;
}

int64_t Plan::process_bytes() const {
  const auto bytes = [this](const MemoryUse& use) {
    return (gpu ? offloaded(use) : use.arena_bytes()) + use.host;
  };
  if (stages.empty()) return program + ranks_here * bytes(memory);
  int64_t sum = 0, most = 0;
  for (const MemoryUse& stage : stages) {
    sum += bytes(stage);
    most = std::max(most, bytes(stage));
  }
  return program + (ranks_here == ranks ? sum * (ranks / static_cast<int>(stages.size()))
                                        : most * ranks_here);
}

int64_t Plan::gpu_bytes() const {
  if (!gpu) return 0;
  const auto bytes = [](const MemoryUse& use) { return use.arena_bytes() - offloaded(use); };
  int64_t most = bytes(memory);
  for (const MemoryUse& stage : stages) most = std::max(most, bytes(stage));
  return gpu->ranks * most + gpu->processes * GpuMemory::kOverhead;
}

}  // namespace megatron::plan
