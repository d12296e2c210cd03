// The loss of a model that gives each text one of several labels.
#pragma once

#include "training/objective.h"

namespace megatron::post_training {

// The mean over texts of -log softmax(scores)[label], at the tokens that the mask counts. Metric:
// "accuracy", the share of texts whose label has the highest score (of equal ones, the first).
class ClassificationObjective : public training::Objective {
 public:
  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> scores,
                                    std::span<double> gradient) const override;
  std::vector<MetricDefinition> metrics() const override { return {{.name = "accuracy"}}; }
};

}  // namespace megatron::post_training
