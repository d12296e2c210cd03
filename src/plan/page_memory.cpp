// The memory of a rank as a stacked bar with its legend, and the share of the machine that a
// process takes.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "plan/bar.h"
#include "plan/figures.h"
#include "plan/grid.h"
#include "plan/page_sections.h"
#include "plan/shortage.h"

namespace megatron::plan {
namespace {

constexpr size_t kBarCells = 72;

struct Marks {
  std::array<std::string, kMemoryClasses + 1> parts;
  std::string used, over, free;
};

Marks marks_of(const PageStyle& style) {
  if (style.blocks) return {{"█", "▓", "▒", "░", "▚", "▞", "╬", "═"}, "█", "!", "·"};
  return {{"P", "G", "O", "A", "S", "C", "F", "H"}, "#", "!", "."};
}

std::string machine_line(const Plan& plan, const Marks& marks) {
  const int64_t process = plan.process_bytes();
  const std::string who = fmt::format(
      "{} and the program ({})", amount_text(plan.ranks_here, "rank"), bytes_text(plan.program));
  if (plan.machine == 0)
    return fmt::format("Memory per process: {} = {}; the machine has {}\n", bytes_text(process),
                       who, kUnknown);
  const int64_t inside = std::min(process, plan.machine);
  const std::string bar = stacked_bar({{marks.used, inside}, {marks.over, process - inside}},
                                      std::max(process, plan.machine), kBarCells, marks.free);
  const double share = static_cast<double>(process) / static_cast<double>(plan.machine);
  return fmt::format(
      "Memory per process: {} = {}\n  {}  {} of {}{}\n", bytes_text(process), who, bar,
      share_text(share), bytes_text(plan.machine),
      plan.cgroup.empty() ? "" : fmt::format(", the limit of its cgroup ({})", plan.cgroup));
}

std::string gpu_line(const Plan& plan, const Marks& marks) {
  if (!plan.gpu) return "";
  const GpuMemory& gpu = *plan.gpu;
  const int64_t needed = plan.gpu_bytes(), inside = std::min(needed, gpu.bytes);
  const std::string bar = stacked_bar({{marks.used, inside}, {marks.over, needed - inside}},
                                      std::max(needed, gpu.bytes), kBarCells, marks.free);
  const double share = static_cast<double>(needed) / static_cast<double>(gpu.bytes);
  return fmt::format("Memory per GPU: {} = {} and CUDA ({})\n  {}  {} of {}\n  {}{}\n",
                     bytes_text(needed), amount_text(gpu.ranks, "rank"),
                     bytes_text(gpu.processes * GpuMemory::kOverhead), bar, share_text(share),
                     bytes_text(gpu.bytes), gpu.name,
                     gpu.assumed.empty() ? "" : ": " + gpu.assumed);
}

std::string verdict(const Plan& plan) {
  if (plan.fits()) return "";
  const std::string shortage =
      plan.fits_gpu()
          ? fmt::format("{} and {}", bytes_text(plan.process_bytes()), plan.memory_text())
          : fmt::format("{} per GPU, which has {}", bytes_text(plan.gpu_bytes()),
                        bytes_text(plan.gpu->bytes));
  std::string text =
      fmt::format("  The run does NOT fit: it needs {}.\n  {}.\n{}", shortage,
                  cause_of_shortage(plan), plan.suggestions.empty() ? "" : "  What would help:\n");
  for (const std::string& suggestion : plan.suggestions) text += "    " + suggestion + "\n";
  return text;
}

// The memory of a rank of each pipeline stage, if there are several.
std::string stages_text(const Plan& plan) {
  if (plan.stages.size() < 2) return "";
  Grid grid({"  pipeline stage", "memory per rank", "parameters", "gradients", "optimizer",
             "activations"});
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const MemoryUse& use = plan.stages[s];
    const auto of = [&use](MemoryClass c) {
      return bytes_text(use.arenas[static_cast<size_t>(c)]);
    };
    grid.add({fmt::format("  {}", s), bytes_text(use.arena_bytes() + use.host),
              of(MemoryClass::parameters), of(MemoryClass::gradients), of(MemoryClass::optimizer),
              of(MemoryClass::activations)});
  }
  return grid.text();
}

}  // namespace

std::vector<MemoryPart> memory_parts(const MemoryUse& memory) {
  std::vector<MemoryPart> parts;
  for (int i = 0; i < kMemoryClasses; ++i)
    parts.push_back({name(static_cast<MemoryClass>(i)), memory.arenas[static_cast<size_t>(i)]});
  parts.push_back({"host", memory.host});
  return parts;
}

std::string memory_section(const Plan& plan, const PageStyle& style) {
  const Marks marks = marks_of(style);
  const std::vector<MemoryPart> parts = memory_parts(plan.memory);
  const int64_t sum = plan.memory.arena_bytes() + plan.memory.host;
  std::vector<BarPart> bar;
  const std::string worst =
      plan.worst_stages.empty() || plan.rank_bytes() <= sum
          ? ""
          : fmt::format("; with the worst expert load {}", bytes_text(plan.rank_bytes()));
  Grid legend({fmt::format("Memory per rank: {}{}", bytes_text(sum), worst)});
  for (size_t i = 0; i < parts.size(); ++i) {
    bar.push_back({marks.parts[i], parts[i].bytes});
    if (parts[i].bytes == 0) continue;
    const double share = static_cast<double>(parts[i].bytes) / static_cast<double>(sum);
    legend.add({fmt::format("  {} {}", marks.parts[i], parts[i].name), bytes_text(parts[i].bytes),
                share_text(share)});
  }
  std::string text = legend.text();
  text += fmt::format("  {}\n", stacked_bar(bar, sum, kBarCells, marks.free));
  if (plan.megatron)
    text += fmt::format(
        "  Megatron-LM's formulas give {} for weights and optimizer, {} for activations\n",
        bytes_text(plan.megatron->weights_and_optimizer), bytes_text(plan.megatron->activations));
  if (!plan.exact)
    text += "  These figures are extrapolated from a shorter run and may be off by a few percent\n";
  return text + stages_text(plan) + gpu_line(plan, marks) + machine_line(plan, marks) +
         verdict(plan);
}

}  // namespace megatron::plan
