// The loss of encoders that label the words of texts, with measures of the entities they find.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "post_training/classification.h"

namespace megatron::post_training {

// ClassificationObjective of words as corpus::WordLabelDataset has them. Metrics: "accuracy", the
// share of words; and if the names are those of parts of entities (corpus/chat/entities.h), their
// "precision", "recall" and "f1" over all texts.
class WordLabelObjective final : public ClassificationObjective {
 public:
  explicit WordLabelObjective(std::vector<std::string> names);
  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> scores,
                                    std::span<double> gradient) const override;
  std::vector<MetricDefinition> metrics() const override;

 private:
  std::vector<std::string> names_;
  bool entities_;  // the names are those of parts of entities
};

}  // namespace megatron::post_training
