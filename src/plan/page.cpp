#include "plan/page.h"

#include <fmt/ranges.h>

#include "plan/figures.h"
#include "plan/page_sections.h"

namespace megatron::plan {
namespace {

std::string layout(const Plan& p) {
  std::string divided;
  if (p.ranks > 1) {
    const PlanAxes& a = p.axes;
    const std::string experts =
        a.expert == 0 ? "" : fmt::format("; experts {} x tensor {}", a.expert, a.expert_tensor);
    const std::string context = a.context == 1 ? "" : fmt::format(" x context {}", a.context);
    divided = fmt::format(" (tensor {} x pipeline {}{} x data {}{})", a.tensor, a.pipeline, context,
                          a.data, experts);
  }
  return fmt::format("{} on {}, {}{} x {}", name(p.type), p.device, amount_text(p.ranks, "rank"),
                     divided, amount_text(p.threads, "thread"));
}

std::string batch(const Plan& p) {
  const int64_t data = p.axes.data;
  return fmt::format("{} of {} = {} x {} of {}", amount_text(p.sequences, "sequence"),
                     p.length_text(),
                     amount_text(data, data == p.ranks ? "rank" : "data-parallel rank"),
                     amount_text(p.micro_batches, "micro-batch", "es"), p.micro_batch_size);
}

std::string classes(const MemoryUse& memory) {
  std::string text;
  for (const MemoryPart& part : memory_parts(memory))
    if (part.bytes > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", part.name, bytes_text(part.bytes));
  return text;
}

std::string machine(const Plan& p) {
  const std::string here = p.machine > 0 ? bytes_text(p.machine) : kUnknown;
  return fmt::format("{} of {} {}: {}", bytes_text(p.process_bytes()),
                     p.cgroup.empty() ? "the machine's" : "its cgroup's", here,
                     p.machine == 0 ? kUnknown
                     : p.fits()     ? "fits"
                                    : "does NOT fit");
}

std::string gpu(const Plan& p) {
  return fmt::format("{} of {} ({}): {}", bytes_text(p.gpu_bytes()), bytes_text(p.gpu->bytes),
                     p.gpu->name, p.fits_gpu() ? "fits" : "does NOT fit");
}

double sent(const Plan& p) {
  double sum = 0;
  for (const TrafficWork& t : p.traffic) sum += t.sent;
  return sum;
}

std::string generation_line(const GenerationMemory& g) {
  const auto size = [](int64_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  std::vector<std::string> parts;
  if (g.token_bytes > 0)
    parts.push_back(fmt::format("{} of keys and values for each token", size(g.token_bytes)));
  if (g.sequence_bytes > 0) parts.push_back(fmt::format("{} of states", size(g.sequence_bytes)));
  return parts.empty() ? ""
                       : fmt::format("generation: a sequence keeps {}\n", fmt::join(parts, ", "));
}

}  // namespace

std::string page(const Plan& plan, const PageStyle& style) {
  std::string text = fmt::format("{}\n{}\nStep: {}\n", plan.model, layout(plan), batch(plan));
  if (!plan.low_precision.empty())
    text += fmt::format("quantized operands: {}\n", plan.low_precision);
  if (plan.generation) text += generation_line(*plan.generation);
  for (const std::string& section :
       {derived_section(plan), parameter_section(plan), memory_section(plan, style),
        experts_section(plan), flops_section(plan), traffic_section(plan), context_section(plan),
        kernel_section(plan), time_section(plan), assumed_section(plan)}) {
    if (!section.empty()) text += "\n" + section;
  }
  return text;
}

std::vector<std::string> summary(const Plan& plan) {
  std::vector<std::string> lines = {
      fmt::format("plan: {}; {}", plan.model, layout(plan)),
      fmt::format("step: {}; {}, {} sent per rank", batch(plan),
                  plan.flops.empty() ? kUnknown : flops_text(plan.flops.front().flops),
                  bytes_text(sent(plan))),
      fmt::format("memory per rank: {} ({})",
                  bytes_text(plan.memory.arena_bytes() + plan.memory.host), classes(plan.memory)),
      plan.gpu ? fmt::format("memory per GPU: {}", gpu(plan))
               : fmt::format("memory per process: {}", machine(plan))};
  if (!plan.low_precision.empty()) lines.push_back("quantized operands: " + plan.low_precision);
  if (plan.step_seconds) lines.push_back("estimated: " + time_line(plan));
  return lines;
}

}  // namespace megatron::plan
