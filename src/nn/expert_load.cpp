// A layer's tally, summed over ranks: for its E experts the choices, the choices with a row, and
// the biases; the number of ranks that contributed to these; the rows that a rank has room for and
// the most that any load needs; and the number of ranks that contributed to those.
#include "nn/expert_load.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"

namespace megatron::nn {
namespace {

constexpr std::string_view kTally = "experts";
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

using Numbers = std::span<const double>;

int64_t tally_width(int64_t experts) { return 3 * experts + 4; }

double sum(Numbers numbers) { return std::accumulate(numbers.begin(), numbers.end(), 0.0); }

double fullest_over_mean(Numbers chosen) {
  const double all = sum(chosen);
  return all == 0 ? kNone : std::ranges::max(chosen) * static_cast<double>(chosen.size()) / all;
}

double dropped_share(Numbers chosen, Numbers kept) {
  const double all = sum(chosen);
  return all == 0 ? kNone : (all - sum(kept)) / all;
}

double range(Numbers biases, double ranks) {
  if (ranks == 0) return kNone;
  const auto [least, most] = std::ranges::minmax(biases);
  return (most - least) / ranks;
}

// In the worst case, all choices of a step that got no row belonged to one buffer, so adding room
// for all of them suffices. An even load times the factor exceeds room - 1.
void check_room(int64_t layer, Numbers tally, size_t experts, double factor) {
  const double chosen = sum(tally.first(experts)),
               lost = chosen - sum(tally.subspan(experts, experts));
  if (lost <= 0) return;
  const double ranks = tally[3 * experts + 3];
  const double room = tally[3 * experts + 1] / ranks, most = tally[3 * experts + 2] / ranks;
  const auto enough = [&] { return std::ceil(100 * factor * (room + lost) / (room - 1)) / 100; };
  const bool below_any_load = room > 1 && room + lost < most;
  fail(
      "layer {}: {:.0f} of the step's {:.0f} token-expert assignments did not fit in the {:.0f} "
      "rows that --moe-expert-rank-capacity-factor {} provides for the experts of a rank. No "
      "weight was changed. Resume with a larger factor{}, or without the flag, which provides "
      "{:.0f} rows, enough for any load; results do not depend on it",
      layer, lost, chosen, room, factor,
      below_any_load ? fmt::format(" ({} is enough for this step)", enough()) : "", most);
}

}  // namespace

std::vector<MetricDefinition> expert_metrics(const std::vector<ExpertLayer>& layers,
                                             const RouterTraining& training) {
  if (layers.empty()) return {};
  std::map<int64_t, size_t> experts;
  MetricDefinition tally{.name = std::string(kTally), .kind = MetricDefinition::Kind::tally};
  for (const ExpertLayer& layer : layers) {
    tally.layers.push_back(layer.layer);
    tally.width = std::max(tally.width, tally_width(layer.experts));
    experts[layer.layer] = static_cast<size_t>(layer.experts);
  }
  // of: called with the choices, those with a row, the biases, and the number of ranks.
  const auto add = [&](std::string_view name, auto of) {
    tally.figures.push_back({std::string(name), [experts, of](int64_t layer, Numbers t) {
                               const size_t n = experts.at(layer);
                               return of(t.first(n), t.subspan(n, n), t.subspan(2 * n, n),
                                         t[3 * n]);
                             }});
  };
  add(kExpertLoad,
      [](Numbers chosen, Numbers, Numbers, double) { return fullest_over_mean(chosen); });
  if (training.capacity_factor > 0)
    add(kDroppedShare,
        [](Numbers chosen, Numbers kept, Numbers, double) { return dropped_share(chosen, kept); });
  if (std::ranges::any_of(layers, &ExpertLayer::correction_bias))
    add(kBiasRange,
        [](Numbers, Numbers, Numbers biases, double ranks) { return range(biases, ranks); });
  if (training.rank_capacity_factor > 0)
    tally.check = [experts, factor = training.rank_capacity_factor](int64_t layer, Numbers t) {
      check_room(layer, t, experts.at(layer), factor);
    };
  return {std::move(tally)};
}

Tensor ExpertLoad::part(const Tape& tape, Part part) const {
  const Tensor tally = tape.tally(kTally, layer_);
  if (!tally.defined()) return tally;
  switch (part) {
    case Part::bias_ranks: return tally.slice(0, 3 * experts_, 1);
    case Part::room: return tally.slice(0, 3 * experts_ + 1, 3);
    default: return tally.slice(0, static_cast<int64_t>(part) * experts_, experts_);
  }
}

void ExpertLoad::count_chosen(const Tape& tape, const Tensor& experts) const {
  if (const Tensor counts = part(tape, Part::chosen); counts.defined())
    tape.kernels().expert_counts({.experts = experts, .rows = experts, .counts = {counts, 1}},
                                 tape.stream());
}

void ExpertLoad::count_kept(const Tape& tape, const Tensor& experts, const Tensor& rows) const {
  if (const Tensor counts = part(tape, Part::kept); counts.defined())
    tape.kernels().expert_counts({.experts = experts, .rows = rows, .counts = {counts, 1}},
                                 tape.stream());
}

void ExpertLoad::fill(const Tensor& out, double value, const Tape& tape) const {
  tape.kernels().fill({.out = out, .value = value}, tape.stream());
}

void ExpertLoad::take_room(const Tape& tape, int64_t rows, int64_t most) const {
  const Tensor room = part(tape, Part::room);
  if (!room.defined()) return;
  fill(room.slice(0, 0, 1), static_cast<double>(rows), tape);
  fill(room.slice(0, 1, 1), static_cast<double>(most), tape);
  fill(room.slice(0, 2, 1), 1, tape);
}

void ExpertLoad::take_bias(const Tape& tape, const Tensor& bias) const {
  const Tensor biases = part(tape, Part::bias);
  if (!biases.defined()) return;
  tape.kernels().copy({.x = bias, .out = biases}, tape.stream());
  fill(part(tape, Part::bias_ranks), 1, tape);
}

}  // namespace megatron::nn
