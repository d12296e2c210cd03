// Writes the figures of the run at the page's load of experts and at the worst load.
#include <fmt/core.h>

#include "plan/figures.h"
#include "plan/grid.h"
#include "plan/known_gpus.h"
#include "plan/page_sections.h"

namespace megatron::plan {
namespace {

std::string room_text(const ExpertRows& rows) {
  switch (rows.bound) {
    case ExpertRows::Bound::expert_capacity:
      return fmt::format("--moe-expert-capacity-factor {:g}", rows.factor);
    case ExpertRows::Bound::rank_capacity:
      return fmt::format("--moe-expert-rank-capacity-factor {:g}", rows.factor);
    case ExpertRows::Bound::any_load: break;
  }
  return rows.divided ? "the worst case: any routing fits" : "one per token and expert";
}

std::string memory_note(const ExpertRows& rows) {
  if (rows.padded) return "Rows are padded to the capacity, so memory does not depend on the load";
  if (!rows.divided) return "Every rank holds all experts, so memory does not depend on the load";
  return rows.fixed
             ? "On a GPU the buffers have a fixed size, so memory does not depend on the load"
             : "On a CPU memory grows with the rows in use, not with the size of the buffers";
}

}  // namespace

std::string experts_section(const Plan& plan) {
  if (!plan.experts) return "";
  const ExpertRows& rows = *plan.experts;
  if (plan.loads.empty()) return "";
  std::vector<std::string> head = {fmt::format("Load of the busiest {} / mean",
                                               rows.divided ? "expert-parallel rank" : "expert")},
                           there = {fmt::format("  rows of {} per layer",
                                                rows.divided ? "its experts" : "all experts")},
                           memory = {"  memory per rank"},
                           time = {plan.assumed
                                       ? fmt::format("  step time, assumed for an {}", kPlannedGpu)
                                       : "  step time"};
  for (const ExpertLoad& load : plan.loads) {
    const bool worst = &load == &plan.loads.back();
    head.push_back(worst            ? fmt::format("{:.4g} (worst case)", load.load)
                   : load.load == 1 ? "1 (balanced)"
                                    : fmt::format("{:g}", load.load));
    there.push_back(std::to_string(load.rows));
    memory.push_back(bytes_text(static_cast<double>(load.bytes)));
    time.push_back(text_or_unknown(load.seconds));
  }
  Grid grid(std::move(head));
  for (auto* row : {&there, &memory, &time}) grid.add(std::move(*row));
  return fmt::format("{}  {}\n  Buffers have {} rows ({}); the other sections are for load {:g}\n",
                     grid.text(), memory_note(rows), rows.room, room_text(rows),
                     plan.loads.front().load);
}

}  // namespace megatron::plan
