#include "post_training/classification.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "post_training/logistic.h"

namespace megatron::post_training {

training::ObjectiveTerms ClassificationObjective::evaluate(const corpus::HostBatch& batch,
                                                           std::span<const double> scores,
                                                           std::span<double> gradient) const {
  training::ObjectiveTerms terms;
  const size_t tokens = batch.loss_mask.size(), classes = scores.size() / tokens;
  double texts = 0, right = 0;
  for (size_t t = 0; t < tokens; ++t) {
    if (batch.loss_mask[t] == 0) continue;
    const std::span<const double> row = scores.subspan(t * classes, classes);
    const auto label = static_cast<size_t>(batch.labels[t]);
    MG_ASSERT(label < classes);
    const auto highest = std::ranges::max_element(row);
    double sum = 0;
    for (const double score : row) sum += std::exp(score - *highest);
    const double log_sum = *highest + std::log(sum);
    terms.loss += log_sum - row[label];
    for (size_t c = 0; c < classes; ++c)
      gradient[t * classes + c] = std::exp(row[c] - log_sum) - (c == label ? 1 : 0);
    texts += 1;
    right += highest == row.begin() + static_cast<std::ptrdiff_t>(label) ? 1 : 0;
  }
  terms.metrics = {{"accuracy", right / std::max(texts, 1.0), texts}};
  return terms;
}

training::ObjectiveTerms MultiLabelObjective::evaluate(const corpus::HostBatch& batch,
                                                       std::span<const double> scores,
                                                       std::span<double> gradient) const {
  const size_t tokens = batch.loss_mask.size(), classes = scores.size() / tokens;
  MG_ASSERT(batch.label_sets.size() == tokens);
  training::ObjectiveTerms terms;
  double texts = 0, exact = 0, hits = 0, named = 0;
  for (size_t t = 0; t < tokens; ++t) {
    if (batch.loss_mask[t] == 0) continue;
    const std::vector<int32_t>& own = batch.label_sets[t];
    bool same = true;
    for (size_t c = 0; c < classes; ++c) {
      const double score = scores[t * classes + c];
      const bool real = std::ranges::binary_search(own, static_cast<int32_t>(c)),
                 predicted = score > 0;
      terms.loss += softplus(real ? -score : score) / static_cast<double>(classes);
      gradient[t * classes + c] = (sigmoid(score) - (real ? 1 : 0)) / static_cast<double>(classes);
      hits += real && predicted ? 1 : 0;
      named += (real ? 1 : 0) + (predicted ? 1 : 0);
      same = same && real == predicted;
    }
    texts += 1;
    exact += same ? 1 : 0;
  }
  terms.metrics = {{"f1", 2 * hits / std::max(named, 1.0), named},
                   {"exact match", exact / std::max(texts, 1.0), texts}};
  return terms;
}

}  // namespace megatron::post_training
