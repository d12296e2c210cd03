#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

int64_t sample_of_row(std::span<const double> logits, std::span<const double> rules) {
  const double temperature = rules[kTemperature], inf = HUGE_VAL;
  if (temperature < 0 || std::ranges::any_of(logits, [](double x) { return std::isnan(x); }))
    return -1;
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const double largest = logits[order[0]];
  if (std::isinf(largest)) return -1;
  if (temperature == 0) return static_cast<int64_t>(order[0]);
  if (rules[kTopK] > 0 && rules[kTopK] < static_cast<double>(order.size()))
    order.resize(static_cast<size_t>(rules[kTopK]));
  std::erase_if(order, [&](size_t i) { return logits[i] == -inf; });
  std::vector<int64_t> weights(logits.size());
  int64_t total = 0;
  for (const size_t i : order) {
    weights[i] = std::llrint(kSampleUnit * std::exp((logits[i] - largest) / temperature));
    total += weights[i];
  }
  if (rules[kTopP] < 1) {
    const double wanted = rules[kTopP] * static_cast<double>(total);
    size_t kept = 0;
    for (int64_t sum = 0; static_cast<double>(sum) < wanted; ++kept) sum += weights[order[kept]];
    for (size_t j = kept; j < order.size(); ++j) weights[order[j]] = 0;
  }
  total = 0;
  for (int64_t& weight : weights) {
    if (static_cast<double>(weight) < rules[kMinP] * kSampleUnit) weight = 0;
    total += weight;
  }
  const double wanted = rules[kUniform] * static_cast<double>(total);
  int64_t sum = 0, id = -1;
  while (static_cast<double>(sum) <= wanted && sum < total)
    sum += weights[static_cast<size_t>(++id)];
  return id;
}

}  // namespace

void sample(const SampleArgs& args, Stream&) {
  const std::vector<double> logits = load<double>(args.logits), rules = load<double>(args.rules);
  const auto width = static_cast<size_t>(args.logits.size(1));
  std::vector<int64_t> ids(static_cast<size_t>(args.logits.size(0)));
  for (size_t r = 0; r < ids.size(); ++r) {
    ids[r] = sample_of_row(std::span(logits).subspan(r * width, width),
                           std::span(rules).subspan(r * kSampleRules, kSampleRules));
  }
  store_integers(args.ids, ids);
}

}  // namespace megatron::kernels::reference
