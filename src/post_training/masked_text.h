// The losses by which encoders are trained: of masked tokens, of pairs of texts, of answers.
#pragma once

#include <array>
#include <optional>

#include "training/objective.h"

namespace megatron::post_training {

// The mean over masked tokens of -log p(token), and with pairs that over the pairs of -log p(label)
// (Devlin et al. 2019, 3.1), both of values [B*S, 1 or 2] that are log-probabilities: of the
// token's label, and at a pair's first token (batch.pair_labels) of the pair's.
//
// A step is divided by its masked tokens. So that its result does not depend on the micro-batches,
// a pair counts as much as the masked tokens of its document; or, given pair_weight, as that many
// masked tokens: with the masked tokens of the step for each of its pairs, the objective is the sum
// of the two means. Metrics: "lm loss" and "sop loss", the two means as Megatron-LM names them, and
// "pair accuracy".
class MaskedTextObjective final : public training::Objective {
 public:
  explicit MaskedTextObjective(bool pairs, std::optional<double> pair_weight = {})
      : pairs_(pairs), pair_weight_(pair_weight) {}
  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> values,
                                    std::span<double> gradient) const override;
  std::vector<MetricDefinition> metrics() const override;

 private:
  std::vector<double> pair_weights(const corpus::HostBatch& batch) const;

  bool pairs_;
  std::optional<double> pair_weight_;
};

// The texts of a batch whose first token the mask counts: the index of this token, and their
// lengths in tokens.
struct TextRange {
  size_t begin = 0, length = 0;
};
std::vector<TextRange> counted_texts(const corpus::HostBatch& batch);

// Reads scores [B*S, 2]: the mean over texts of the two cross entropies of the answer's first and
// last token, each a softmax over all tokens of the text (Devlin et al. 2019, 4.2). A text is a run
// of tokens with one segment start, or a row without these, and counts if the mask counts its first
// token; the targets of its first two tokens are the indices in the text of the answer's first and
// last token. An index past the text is left out of the mean of its kind, which is that of a
// micro-batch; or, given weights, each first and each last token that is in its text counts as that
// many texts.
class AnswerObjective : public training::Objective {
 public:
  explicit AnswerObjective(std::optional<std::array<double, 2>> weights = {}) : weights_(weights) {}
  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> scores,
                                    std::span<double> gradient) const override;

 private:
  std::optional<std::array<double, 2>> weights_;
};

}  // namespace megatron::post_training
