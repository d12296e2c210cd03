#include "training/plan/many_layers.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/divide.h"

namespace megatron::training {
namespace {

constexpr int64_t kMaxPlanned = 8192;  // layers; deeper models are extrapolated
constexpr int64_t kApart = 512;        // layers between two depths, rounded up to whole units
constexpr double kHoles =
    1e-2;  // tolerance for holes between an arena's blocks, which do not grow evenly

// One figure of three plans.
class Line {
 public:
  Line(const std::array<plan::Plan, 3>& plans, const Depths& depths)
      : plans_(plans),
        steps_((depths.all - depths.layers[2]) / (depths.layers[2] - depths.layers[1])) {}

  // of: returns the figure of a plan. slack: allowed deviation from a line, relative to the figure.
  template <class F>
  auto operator()(F&& of, double slack = 1e-9) {
    const auto a = of(plans_[0]), b = of(plans_[1]), c = of(plans_[2]);
    const auto growth = c - b;
    const auto bend = static_cast<double>(growth - (b - a));
    if (std::abs(bend) > slack * std::abs(static_cast<double>(c))) straight_ = false;
    return c + static_cast<decltype(c - b)>(steps_) * growth;
  }

  bool straight() const { return straight_; }

 private:
  const std::array<plan::Plan, 3>& plans_;
  int64_t steps_;
  bool straight_ = true;
};

plan::MemoryUse deepened_memory(
    Line& line, const std::function<const plan::MemoryUse&(const plan::Plan&)>& of) {
  plan::MemoryUse use;
  for (size_t i = 0; i < use.arenas.size(); ++i)
    use.arenas[i] = line([&](const plan::Plan& p) { return of(p).arenas[i]; }, kHoles);
  use.host = line([&](const plan::Plan& p) { return of(p).host; });
  return use;
}

// The last plan's spans, with the second-to-last layer repeated for each missing layer.
std::vector<plan::ParameterCount> deepened_parameters(const plan::Plan& last,
                                                      const Depths& depths) {
  const auto span = [](int64_t layer) { return fmt::format("layers.{}", layer); };
  const int64_t end = depths.layers[2], missing = depths.all - end;
  std::vector<plan::ParameterCount> all, repeated, behind;
  for (const plan::ParameterCount& p : last.parameters) {
    if (p.span == span(end - 2)) repeated.push_back(p);
    const bool is_last = p.span == span(end - 1);
    if (behind.empty() && !is_last) all.push_back(p);
    else behind.push_back(p);
    if (is_last) behind.back().span = span(depths.all - 1);
  }
  for (int64_t i = 0; i < missing; ++i)
    for (plan::ParameterCount p : repeated) {
      p.span = span(end - 1 + i);
      all.push_back(std::move(p));
    }
  all.insert(all.end(), behind.begin(), behind.end());
  return all;
}

template <class List>
bool same_lengths(const std::array<plan::Plan, 3>& plans, List plan::Plan::* list) {
  return (plans[0].*list).size() == (plans[2].*list).size() &&
         (plans[1].*list).size() == (plans[2].*list).size();
}

}  // namespace

std::optional<Depths> depths_for(const settings::TrainSettings& s, int64_t num_layers) {
  if (num_layers <= kMaxPlanned) return std::nullopt;
  const parallel::PipelineShape shape = s.parallel.pipeline(num_layers);
  const int64_t together = shape.stages * std::max(1, shape.chunks);
  const int64_t unit = std::lcm(together, together * s.recompute.num_layers.value_or(1));
  const int64_t apart = round_up(kApart, unit);
  const int64_t last = num_layers % apart + 3 * apart;
  if (last >= num_layers) return std::nullopt;
  return Depths{{last - 2 * apart, last - apart, last}, num_layers};
}

std::optional<plan::Plan> deepened(const std::array<plan::Plan, 3>& plans, const Depths& depths,
                                   plan::Plan whole) {
  if (!same_lengths(plans, &plan::Plan::kernels) || !same_lengths(plans, &plan::Plan::traffic) ||
      !same_lengths(plans, &plan::Plan::stages))
    return std::nullopt;
  Line line(plans, depths);
  whole.parameters = deepened_parameters(plans[2], depths);
  whole.memory =
      deepened_memory(line, [](const plan::Plan& p) -> const plan::MemoryUse& { return p.memory; });
  whole.stages = plans[2].stages;
  for (size_t i = 0; i < whole.stages.size(); ++i)
    whole.stages[i] = deepened_memory(
        line, [i](const plan::Plan& p) -> const plan::MemoryUse& { return p.stages[i]; });
  whole.kernels = plans[2].kernels;
  for (size_t i = 0; i < whole.kernels.size(); ++i) {
    plan::KernelWork& work = whole.kernels[i];
    work.calls = line([i](const plan::Plan& p) { return p.kernels[i].calls; });
    work.cost.flops = line([i](const plan::Plan& p) { return p.kernels[i].cost.flops; });
    work.cost.bytes = line([i](const plan::Plan& p) { return p.kernels[i].cost.bytes; });
  }
  whole.traffic = plans[2].traffic;
  for (size_t i = 0; i < whole.traffic.size(); ++i) {
    plan::TrafficWork& work = whole.traffic[i];
    work.calls = line([i](const plan::Plan& p) { return p.traffic[i].calls; });
    work.bytes = line([i](const plan::Plan& p) { return p.traffic[i].bytes; });
    work.sent = line([i](const plan::Plan& p) { return p.traffic[i].sent; });
  }
  whole.experts = plans[2].experts;
  whole.exact = false;
  if (!line.straight()) return std::nullopt;
  return whole;
}

void take_time(plan::Plan& deep, const plan::Plan& timed) {
  deep.peak = timed.peak;
  deep.peak_origin = timed.peak_origin;
  double before = 0, after = 0;
  for (size_t i = 0; i < deep.kernels.size(); ++i) {
    const plan::KernelWork& of = timed.kernels[i];
    plan::KernelWork& work = deep.kernels[i];
    if (!of.seconds) continue;
    const bool computes = of.cost.flops > 0;
    const double times = (computes ? work.cost.flops : work.cost.bytes) /
                         std::max(1.0, computes ? of.cost.flops : of.cost.bytes);
    work.seconds = *of.seconds * times;
    before += *of.seconds;
    after += *work.seconds;
  }
  if (timed.step_seconds && before > 0) deep.step_seconds = *timed.step_seconds * after / before;
}

}  // namespace megatron::training
