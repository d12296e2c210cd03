#include "plan/shortage.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <vector>

#include "plan/figures.h"

namespace megatron::plan {
namespace {

constexpr double kWorthNaming = 0.1;  // fraction of what a rank needs

struct Part {
  std::string name;
  double bytes = 0;
};

double of(const MemoryUse& use, std::initializer_list<MemoryClass> classes) {
  double sum = 0;
  for (const MemoryClass c : classes)
    sum += static_cast<double>(use.arenas[static_cast<size_t>(c)]);
  return sum;
}

// Excludes memory other than the one that is short.
double bytes_of(const Plan& plan, const MemoryUse& use) {
  const double offload = of(use, {MemoryClass::offload});
  const auto arenas = static_cast<double>(use.arena_bytes());
  if (!plan.fits_gpu()) return arenas - offload;
  return (plan.gpu ? offload : arenas) + static_cast<double>(use.host);
}

const MemoryUse& fullest(const Plan& plan) {
  if (plan.stages.empty()) return plan.memory;
  return *std::ranges::max_element(plan.stages, {},
                                   [&](const MemoryUse& use) { return bytes_of(plan, use); });
}

// The training state of a whole model, divided in proportion to its parameters; a pipeline stage is
// assumed to have the same proportions.
std::vector<Part> state_parts(const Plan& plan, double state) {
  double layers = 0, positions = 0, vocabulary = 0;
  std::set<std::string> spans;
  for (const ParameterCount& p : plan.parameters) {
    const auto count = static_cast<double>(p.count);
    if (p.group == "position") positions += count;
    else if (p.group == "embedding" || p.group == "output") vocabulary += count;
    else layers += count;
    if (p.span.starts_with("layers.")) spans.insert(p.span);
  }
  const double all = std::max(1.0, layers + positions + vocabulary);
  const std::string what = "weights, gradients and optimizer state of ";
  return {{what + amount_text(static_cast<int64_t>(spans.size()), "layer"), state * layers / all},
          {what + "the vocabulary (embedding and output layer)", state * vocabulary / all},
          {what + "the position embeddings", state * positions / all}};
}

std::string expert_rows_text(const Plan& plan) {
  const auto& rows = plan.experts;
  if (!rows || !rows->divided || rows->padded || rows->bound != ExpertRows::Bound::any_load)
    return "";
  return fmt::format(
      " (including {} rows per layer for experts, enough for any load; an even load needs {:.0f})",
      rows->room, rows->even);
}

std::vector<Part> parts_of(const Plan& plan, const MemoryUse& use) {
  std::vector<Part> parts;
  const bool device = !plan.gpu || !plan.fits_gpu();  // the memory of the arenas is short
  if (device) {
    using enum MemoryClass;
    parts = state_parts(plan, of(use, {parameters, gradients, optimizer}));
    parts.push_back({fmt::format("activations of micro-batches of {} of {}{}",
                                 amount_text(plan.micro_batch_size, "sequence"), plan.length_text(),
                                 expert_rows_text(plan)),
                     of(use, {activations, scratch})});
    parts.push_back({"communication buffers", of(use, {communication})});
  }
  if (!plan.gpu || !device) {
    parts.push_back({"offloaded data in host memory", of(use, {MemoryClass::offload})});
    parts.push_back({fmt::format("prefetched batches of {}",
                                 amount_text(plan.micro_batches, "micro-batch", "es")),
                     static_cast<double>(use.host)});
  }
  std::ranges::stable_sort(parts, std::greater(), &Part::bytes);
  return parts;
}

std::string whose(const Plan& plan, double rank) {
  const bool gpu = !plan.fits_gpu();
  const int together = gpu ? plan.gpu->ranks : plan.ranks_here;
  if (together == 1) return fmt::format("A rank needs {}", bytes_text(rank));
  const std::string where = gpu ? "that share a GPU" : "on this machine";
  const auto room = static_cast<double>(gpu ? plan.gpu->bytes : plan.machine - plan.program);
  return fmt::format("Each of the {} ranks {} needs {}{}", together, where, bytes_text(rank),
                     rank <= room ? ", which would fit without the others" : "");
}

}  // namespace

std::string cause_of_shortage(const Plan& plan) {
  const MemoryUse& use = fullest(plan);
  const double rank = bytes_of(plan, use);
  std::string text;
  for (const Part& part : parts_of(plan, use))
    if (part.bytes >= kWorthNaming * rank && part.bytes > 0)
      text +=
          fmt::format("{}{} for {}", text.empty() ? ": " : ", ", bytes_text(part.bytes), part.name);
  return whose(plan, rank) + text;
}

}  // namespace megatron::plan
