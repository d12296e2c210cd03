// Scores of texts by a model with a score head: one number per label, from a text's last token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inference/request.h"
#include "models/facts.h"

namespace megatron::inference {

// The request for a text's scores. It ends at the last token that is not the model's padding, like
// in transformers: what follows has no effect. tokens: not empty.
Request score_request(const models::ModelFacts& model, std::span<const int32_t> tokens,
                      uint64_t number = 0);

// True if the model has scores of a text, by its first or last token or their mean; false: of each
// of its tokens.
bool scores_texts(const models::ModelFacts& model);

// Scores as probabilities, by the model's activation; its result is the scores for none.
std::vector<double> activated(models::ScoreActivation activation, std::span<const float> scores);

}  // namespace megatron::inference
