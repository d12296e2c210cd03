#include "post_training/classification.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

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

}  // namespace megatron::post_training
