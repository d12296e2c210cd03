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

const ContextExchange* ContextExchanges::cheapest() const {
  const ContextExchange* least = nullptr;
  for (const ContextExchange& e : all)
    if (e.refused.empty() && (least == nullptr || e.sent < least->sent)) least = &e;
  return least;
}

namespace {

int64_t offloaded(const MemoryUse& use) {
  return use.arenas[static_cast<size_t>(MemoryClass::offload)];
}

}  // namespace

std::string Plan::length_text() const {
  const std::string tokens = amount_text(length, "token");
  return encoder_length == 0 ? tokens : fmt::format("{} + {}", encoder_length, tokens);
}

std::string Plan::memory_text() const {
  const std::string bytes = bytes_text(static_cast<double>(machine));
  return cgroup.empty() ? "the machine has " + bytes
                        : fmt::format("its cgroup ({}) allows {}", cgroup, bytes);
}

namespace {

// Memory of a rank of each stage at the worst load of experts.
std::vector<MemoryUse> fullest_ranks(const Plan& plan) {
  if (!plan.worst_stages.empty()) return plan.worst_stages;
  return plan.stages.empty() ? std::vector<MemoryUse>{plan.memory} : plan.stages;
}

}  // namespace

int64_t Plan::rank_bytes() const {
  int64_t most = 0;
  for (const MemoryUse& stage : fullest_ranks(*this))
    most = std::max(most, stage.arena_bytes() + stage.host);
  return most;
}

// If some ranks are on other machines, each rank here is assumed to hold the largest stage.
int64_t Plan::process_bytes() const {
  const std::vector<MemoryUse> held = fullest_ranks(*this);
  int64_t sum = 0, most = 0;
  for (const MemoryUse& stage : held) {
    const int64_t bytes = (gpu ? offloaded(stage) : stage.arena_bytes()) + stage.host;
    sum += bytes;
    most = std::max(most, bytes);
  }
  return program + (ranks_here == ranks && !stages.empty()
                        ? sum * (ranks / static_cast<int>(held.size()))
                        : most * ranks_here);
}

int64_t Plan::gpu_bytes() const {
  if (!gpu) return 0;
  int64_t most = 0;
  for (const MemoryUse& stage : fullest_ranks(*this))
    most = std::max(most, stage.arena_bytes() - offloaded(stage));
  return gpu->ranks * most + gpu->processes * GpuMemory::kOverhead;
}

}  // namespace megatron::plan
