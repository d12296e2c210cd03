#include "post_training/masked_text.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace megatron::post_training {

std::vector<double> MaskedTextObjective::pair_weights(const corpus::HostBatch& batch) const {
  const size_t tokens = batch.tokens.size();
  const auto length = static_cast<size_t>(batch.layout.length);
  std::vector<double> weights(tokens);
  if (pair_weight_) {
    for (size_t t = 0; t < tokens; ++t)
      if (batch.pair_labels[t] >= 0) weights[t] = *pair_weight_;
    return weights;
  }
  for (size_t t = 0; t < tokens; ++t) {
    const size_t row = t / length * length;
    const size_t first =
        row + (batch.segment_starts.empty() ? 0 : static_cast<size_t>(batch.segment_starts[t]));
    if (batch.pair_labels[first] >= 0) weights[first] += batch.loss_mask[t];
  }
  return weights;
}

training::ObjectiveTerms MaskedTextObjective::evaluate(const corpus::HostBatch& batch,
                                                       std::span<const double> values,
                                                       std::span<double> gradient) const {
  const size_t tokens = batch.loss_mask.size(), width = pairs_ ? 2 : 1;
  MG_ASSERT(values.size() == tokens * width);
  training::ObjectiveTerms terms;
  double masked = 0, of_tokens = 0;
  for (size_t t = 0; t < tokens; ++t) {
    const double mask = batch.loss_mask[t];
    if (mask == 0) continue;
    of_tokens -= mask * values[t * width];
    gradient[t * width] = -mask;
    masked += mask;
  }
  terms.loss = of_tokens;
  terms.metrics = {{"lm loss", of_tokens / std::max(masked, 1.0), masked}};
  if (!pairs_) return terms;
  MG_ASSERT(batch.pair_labels.size() == tokens);
  const std::vector<double> weights = pair_weights(batch);
  double pairs = 0, right = 0, of_pairs = 0;
  for (size_t t = 0; t < tokens; ++t) {
    if (batch.pair_labels[t] < 0) continue;
    const double value = values[t * width + 1];
    terms.loss -= weights[t] * value;
    gradient[t * width + 1] = -weights[t];
    of_pairs -= value;
    pairs += 1;
    right += value > std::log(0.5) ? 1 : 0;
  }
  const double divisor = std::max(pairs, 1.0);
  terms.metrics.push_back({"sop loss", of_pairs / divisor, pairs});
  terms.metrics.push_back({"pair accuracy", right / divisor, pairs});
  return terms;
}

std::vector<MetricDefinition> MaskedTextObjective::metrics() const {
  if (!pairs_) return {{.name = "lm loss"}};
  return {{.name = "lm loss"}, {.name = "sop loss"}, {.name = "pair accuracy"}};
}

std::vector<TextRange> counted_texts(const corpus::HostBatch& batch) {
  const auto length = static_cast<size_t>(batch.layout.length),
             shown = static_cast<size_t>(batch.text_length > 0 ? batch.text_length
                                                               : batch.layout.length),
             rows = static_cast<size_t>(batch.layout.sequences);
  std::vector<TextRange> texts;
  for (size_t row = 0; row < rows; ++row) {
    const auto start = [&](size_t t) {
      const size_t at = row * length + t;
      return batch.segment_starts.empty() ? 0 : static_cast<size_t>(batch.segment_starts[at]);
    };
    for (size_t begin = 0; begin < shown;) {
      size_t end = begin + 1;
      while (end < shown && start(end) == start(begin)) ++end;
      if (start(begin) == begin && batch.loss_mask[row * length + begin] != 0)
        texts.push_back({row * length + begin, end - begin});
      begin = end;
    }
  }
  return texts;
}

training::ObjectiveTerms AnswerObjective::evaluate(const corpus::HostBatch& batch,
                                                   std::span<const double> scores,
                                                   std::span<double> gradient) const {
  training::ObjectiveTerms terms;
  const std::vector<TextRange> texts = counted_texts(batch);
  for (size_t end = 0; end < 2; ++end) {
    const auto answer = [&](const TextRange& text) {
      return static_cast<size_t>(std::max(batch.targets[text.begin + end], 0.0));
    };
    double counted = 0;
    for (const TextRange& text : texts) counted += answer(text) < text.length ? 1 : 0;
    for (const TextRange& text : texts) {
      if (answer(text) >= text.length) continue;
      const auto score = [&](size_t t) { return scores[(text.begin + t) * 2 + end]; };
      double highest = score(0), sum = 0;
      for (size_t t = 1; t < text.length; ++t) highest = std::max(highest, score(t));
      for (size_t t = 0; t < text.length; ++t) sum += std::exp(score(t) - highest);
      const double log_sum = highest + std::log(sum);
      // A step is divided by all texts that the mask counts.
      const double weight = weights_ ? (*weights_)[end] : batch.counted() / counted / 2;
      const size_t at = answer(text);
      terms.loss += weight * (log_sum - score(at));
      for (size_t t = 0; t < text.length; ++t)
        gradient[(text.begin + t) * 2 + end] =
            weight * (std::exp(score(t) - log_sum) - (t == at ? 1 : 0));
    }
  }
  return terms;
}

}  // namespace megatron::post_training
