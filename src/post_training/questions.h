// The loss of encoders that find answers in texts, with measures of their predictions.
#pragma once

#include "post_training/masked_text.h"

namespace megatron::post_training {

// AnswerObjective of windows as corpus::AnswerDataset has them. Metrics, means over windows by
// their tokens: "exact match", the share of windows whose predicted answer is theirs, and "f1", the
// harmonic mean of the shares of the predicted tokens that are of the answer, and of the answer's
// that are predicted. Of a window without an answer, the prediction without one is right.
class QuestionObjective final : public AnswerObjective {
 public:
  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> scores,
                                    std::span<double> gradient) const override;
  std::vector<MetricDefinition> metrics() const override {
    return {{.name = "exact match"}, {.name = "f1"}};
  }
};

}  // namespace megatron::post_training
