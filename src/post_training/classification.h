// The losses of a model that gives each text one of several labels, or any number of them.
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

// The mean over texts and over all classes of -log sigmoid(score) for the classes that a text has
// (label_sets of the batch), and of -log sigmoid(-score) for the other classes. A class is
// predicted if its score is above 0. Metrics: "f1", 2 x hits / (predicted + real classes) over all
// texts, and "exact match", the share of texts for which exactly the right classes are predicted.
class MultiLabelObjective final : public training::Objective {
 public:
  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> scores,
                                    std::span<double> gradient) const override;
  std::vector<MetricDefinition> metrics() const override {
    return {{.name = "f1"}, {.name = "exact match"}};
  }
};

}  // namespace megatron::post_training
