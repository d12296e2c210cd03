// The loss of a model that scores texts, from which of two people preferred.
#pragma once

#include "training/objective.h"

namespace megatron::post_training {

// The loss of Bradley and Terry (1952) as in Ouyang et al. (2022), 3.5, with the margin of Touvron
// et al. (2023), 3.2.2, and the centering of Eisenstein et al. (2023): the mean over pairs of
//   -log sigmoid(r_chosen - r_rejected - margin) + coefficient (r_chosen + r_rejected)^2.
// The tokens that a sequence's mask counts are those of its pairs' scores, chosen and rejected in
// turn; targets at the chosen one's have the margin. Metrics: "accuracy", the share of pairs whose
// chosen text has the higher score; "margin", r_chosen - r_rejected; "reward", the mean score.
class RewardObjective final : public training::Objective {
 public:
  explicit RewardObjective(double center_coefficient = 0) : center_(center_coefficient) {}
  double counted(const corpus::HostBatch& batch) const override { return batch.counted() / 2; }
  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> scores,
                                    std::span<double> gradient) const override;
  std::vector<MetricDefinition> metrics() const override;

 private:
  double center_;
};

}  // namespace megatron::post_training
