#include "post_training/reward.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "post_training/logistic.h"

namespace megatron::post_training {

training::ObjectiveTerms RewardObjective::evaluate(const corpus::HostBatch& batch,
                                                   std::span<const double> scores,
                                                   std::span<double> gradient) const {
  MG_ASSERT(scores.size() == batch.loss_mask.size() && batch.targets.size() == scores.size());
  training::ObjectiveTerms terms;
  double pairs = 0, right = 0, margins = 0, rewards = 0;
  const auto length = static_cast<size_t>(batch.layout.length);
  for (size_t begin = 0; begin < scores.size(); begin += length) {
    std::optional<size_t> chosen;
    for (size_t t = begin; t < begin + length; ++t) {
      if (batch.loss_mask[t] == 0) continue;
      if (!chosen) {
        chosen = t;
        continue;
      }
      const double difference = scores[*chosen] - scores[t], sum = scores[*chosen] + scores[t],
                   excess = difference - batch.targets[*chosen];
      terms.loss += softplus(-excess) + center_ * sum * sum;
      gradient[*chosen] = -sigmoid(-excess) + 2 * center_ * sum;
      gradient[t] = sigmoid(-excess) + 2 * center_ * sum;
      pairs += 1;
      right += difference > 0 ? 1 : 0;
      margins += difference;
      rewards += sum / 2;
      chosen.reset();
    }
    MG_ASSERT(!chosen);
  }
  const double divisor = std::max(pairs, 1.0);
  terms.metrics = {{"accuracy", right / divisor, pairs},
                   {"margin", margins / divisor, pairs},
                   {"reward", rewards / divisor, pairs}};
  return terms;
}

std::vector<MetricDefinition> RewardObjective::metrics() const {
  return {{.name = "accuracy"}, {.name = "margin"}, {.name = "reward"}};
}

}  // namespace megatron::post_training
