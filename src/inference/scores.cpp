#include "inference/scores.h"

#include <algorithm>
#include <cmath>

namespace megatron::inference {

Request score_request(const models::ModelFacts& model, std::span<const int32_t> tokens,
                      uint64_t number) {
  const int64_t padding = model.score_padding;
  while (tokens.size() > 1 && tokens.back() == padding) tokens = tokens.first(tokens.size() - 1);
  return {
      .number = number, .prompt = {tokens.begin(), tokens.end()}, .max_tokens = 0, .scores = true};
}

bool scores_texts(const models::ModelFacts& model) {
  return model.score_labels > 0 && model.scored != models::ScoredTokens::each_token &&
         model.scored != models::ScoredTokens::span;
}

std::vector<double> activated(models::ScoreActivation activation, std::span<const float> scores) {
  std::vector<double> values(scores.begin(), scores.end());
  if (activation == models::ScoreActivation::none) return values;
  if (activation == models::ScoreActivation::sigmoid) {
    for (double& value : values) value = 1 / (1 + std::exp(-value));
    return values;
  }
  const double largest = std::ranges::max(values);
  double sum = 0;
  for (double& value : values) sum += value = std::exp(value - largest);
  for (double& value : values) value /= sum;
  return values;
}

}  // namespace megatron::inference
