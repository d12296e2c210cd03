// Settings, operations, traffic, kernels and time.

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <span>
#include <tuple>

#include "plan/figures.h"
#include "plan/flops.h"
#include "plan/grid.h"
#include "plan/known_gpus.h"
#include "plan/page_sections.h"
#include "plan/speed.h"

namespace megatron::plan {
namespace {

constexpr size_t kKernelsShown = 8;

}  // namespace

std::string derived_section(const Plan& plan) {
  if (plan.derived.empty()) return "";
  std::string text = "Settings derived from others\n";
  for (const std::string& line : note_lines(plan.derived)) text += line + "\n";
  return text;
}

std::string flops_section(const Plan& plan) {
  if (plan.flops.empty()) return "";
  const auto meaning = [](std::string_view formula) -> std::string_view {
    if (formula == kModelFlops) return "this program: causal attention counted half";
    if (formula == kMegatronFlops) return "Megatron-LM: the same with padded vocabulary";
    if (formula == kMegatronFullAttentionFlops)
      return "older Megatron-LM: attention counted in full";
    return "";
  };
  const double tokens = static_cast<double>(plan.tokens());
  Grid grid({"FLOPs by formula", "per step", "per token"});
  for (const FlopCount& f : plan.flops)
    grid.add({"  " + f.formula, flops_text(f.flops), flops_text(f.flops / tokens),
              left(std::string(meaning(f.formula)), 46)});
  return grid.text();
}

std::string traffic_section(const Plan& plan) {
  const std::string title = "Communication per rank and step";
  if (plan.traffic.empty()) return title + ": none\n";
  Grid grid({title, "ranks", "calls", "bytes", "sent"});
  for (const TrafficWork& t : plan.traffic)
    grid.add({fmt::format("  {} {}", t.collective, t.call), std::to_string(t.ranks),
              count_text(t.calls), bytes_text(t.bytes), bytes_text(t.sent)});
  return grid.text();
}

namespace {

// Most expensive first: by time or, if unknown, by work.
std::vector<KernelWork> by_cost(std::vector<KernelWork> work) {
  const auto cost = [](const KernelWork& k) {
    return std::tuple(k.seconds.value_or(-1), k.cost.flops, k.cost.bytes);
  };
  std::ranges::stable_sort(work, std::greater(), cost);
  return work;
}

// The time is set only if it is known for all.
KernelWork sum_of(std::span<const KernelWork> work) {
  KernelWork sum{.seconds = 0.0};
  for (const KernelWork& k : work) {
    sum.calls += k.calls;
    sum.cost.flops += k.cost.flops;
    sum.cost.bytes += k.cost.bytes;
    sum.seconds =
        sum.seconds && k.seconds ? std::optional(*sum.seconds + *k.seconds) : std::nullopt;
  }
  return sum;
}

std::vector<std::string> kernel_row(const std::string& label, const KernelWork& k,
                                    const std::optional<double>& all_seconds) {
  const bool share = k.seconds && all_seconds && *all_seconds > 0;
  return {"  " + label,
          count_text(k.calls),
          k.cost.flops > 0 ? flops_text(k.cost.flops) : "-",
          bytes_text(k.cost.bytes),
          text_or_unknown(k.seconds),
          share ? share_text(*k.seconds / *all_seconds) : kUnknown};
}

}  // namespace

std::string kernel_section(const Plan& plan) {
  if (plan.kernels.empty()) return "";
  const std::vector<KernelWork> work = by_cost(plan.kernels);
  const KernelWork all = sum_of(work);
  Grid grid({"Kernels per rank and step", "calls", "FLOPs", "bytes", "time", "share"});
  const size_t shown = work.size() > kKernelsShown + 1 ? kKernelsShown : work.size();
  for (size_t i = 0; i < shown; ++i)
    grid.add(
        kernel_row(fmt::format("{} {}", work[i].kernel, name(work[i].type)), work[i], all.seconds));
  const auto others = std::span<const KernelWork>(work).subspan(shown);
  if (!others.empty())
    grid.add(kernel_row(fmt::format("{} others", others.size()), sum_of(others), all.seconds));
  grid.add(kernel_row("all", all, all.seconds));
  return grid.text();
}

std::string time_line(const Plan& plan) {
  const Speed speed = speed_of(plan);
  const std::string tokens =
      speed.tokens_per_second
          ? fmt::format("{:.{}f}", *speed.tokens_per_second, *speed.tokens_per_second < 10 ? 3 : 0)
          : kUnknown;
  const std::string peak = speed.peak_share
                               ? fmt::format("{} of the GEMM peak ({}/s)",
                                             share_text(*speed.peak_share), flops_text(plan.peak))
                               : fmt::format("{} of the GEMM peak", kUnknown);
  return fmt::format("{} per step, {} tokens/s, {}; {} in {}", text_or_unknown(plan.step_seconds),
                     tokens, peak, amount_text(plan.iterations, "step"),
                     text_or_unknown(speed.run_seconds));
}

std::string time_section(const Plan& plan) {
  if (!plan.step_seconds) {
    const bool elsewhere = plan.gpu && !plan.gpu->assumed.empty();
    return fmt::format("Estimated on this machine: {}{}\n", kUnknown,
                       !elsewhere ? ""
                       : plan.gpu->known_rates
                           ? " (which has no GPU to measure)"
                           : fmt::format(" (which has no {} to measure)", plan.gpu->name));
  }
  return fmt::format(
      "Estimated on this machine\n  {}\n{}", time_line(plan),
      plan.peak_origin.empty() ? "" : fmt::format("  the GEMM peak was {}\n", plan.peak_origin));
}

namespace {

std::vector<std::string> assumed_row(const AssumedItem& item, double micro_batch) {
  const std::string rate = item.flops_per_second   ? flops_text(*item.flops_per_second) + "/s"
                           : item.bytes_per_second ? bytes_text(*item.bytes_per_second) + "/s"
                                                   : "-";
  return {"  " + item.name, seconds_text(item.seconds),
          micro_batch > 0 ? share_text(item.seconds / micro_batch) : "", rate};
}

}  // namespace

std::string assumed_section(const Plan& plan) {
  if (!plan.assumed) return "";
  const AssumedTime& time = *plan.assumed;
  Grid grid({fmt::format("Assumed for an {}, not measured", kPlannedGpu), "time", "share", "rate"});
  for (const AssumedItem& item : time.items) grid.add(assumed_row(item, time.micro_batch_seconds));
  grid.add({"  micro-batch", seconds_text(time.micro_batch_seconds), "", ""});
  grid.add(assumed_row(time.optimizer, 0));
  const Speed speed = assumed_speed(plan);
  return fmt::format("{}  {} per step, {:.0f} tokens/s, {} of the data sheet's peak{}\n",
                     grid.text(), seconds_text(time.step_seconds), *speed.tokens_per_second,
                     share_text(*speed.peak_share),
                     plan.ranks > 1 ? ", without communication between ranks" : "");
}

}  // namespace megatron::plan
