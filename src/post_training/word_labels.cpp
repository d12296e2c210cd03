#include "post_training/word_labels.h"

#include <algorithm>
#include <cmath>

#include "corpus/chat/entities.h"

namespace megatron::post_training {

WordLabelObjective::WordLabelObjective(std::vector<std::string> names)
    : names_(std::move(names)), entities_(corpus::EntityCounts::are_parts(names_)) {}

training::ObjectiveTerms WordLabelObjective::evaluate(const corpus::HostBatch& batch,
                                                      std::span<const double> scores,
                                                      std::span<double> gradient) const {
  training::ObjectiveTerms terms = ClassificationObjective::evaluate(batch, scores, gradient);
  if (!entities_) return terms;
  const size_t classes = names_.size(), length = static_cast<size_t>(batch.layout.length);
  corpus::EntityCounts counts(names_);
  std::vector<int32_t> real, predicted;
  std::pair<size_t, int32_t> text = {0, 0};  // row and start of the text of these words
  const auto end_text = [&] {
    counts.add(real, predicted);
    real.clear(), predicted.clear();
  };
  for (size_t t = 0; t < batch.loss_mask.size(); ++t) {
    if (batch.loss_mask[t] == 0) continue;
    const std::pair<size_t, int32_t> own = {
        t / length, batch.segment_starts.empty() ? 0 : batch.segment_starts[t]};
    if (own != text) end_text();
    text = own;
    const std::span<const double> row = scores.subspan(t * classes, classes);
    real.push_back(batch.labels[t]);
    predicted.push_back(static_cast<int32_t>(std::ranges::max_element(row) - row.begin()));
  }
  end_text();
  // Weighed by what they are shares of, so that the mean of several batches is that of all texts.
  const corpus::EntityCounts::Counts all = counts.all();
  const auto add = [&](std::string_view name, double value, int64_t weight) {
    terms.metrics.push_back({name, std::isnan(value) ? 0 : value, static_cast<double>(weight)});
  };
  add("precision", all.precision(), all.predicted);
  add("recall", all.recall(), all.real);
  add("f1", all.f1(), all.real + all.predicted);
  return terms;
}

std::vector<MetricDefinition> WordLabelObjective::metrics() const {
  std::vector<MetricDefinition> all = ClassificationObjective::metrics();
  if (entities_)
    for (const char* name : {"precision", "recall", "f1"}) all.push_back({.name = name});
  return all;
}

}  // namespace megatron::post_training
