// Bodies of the endpoints of models with a score head, with vLLM's fields.
#pragma once

#include "server/parameters.h"
#include "server/text_model.h"

namespace megatron::server {

struct ScoreRequest {
  std::vector<std::vector<int32_t>> texts;  // tokens
  bool activation = true;                   // probabilities instead of scores
  int64_t priority = 0;
};

// POST /v1/classify and /pooling: `input` or `messages`. Throws ApiError.
ScoreRequest read_scored_texts(const Parameters& p, const TextModel& model);
// POST /v1/score: pairs of texts, each of which is read as one text. Throws ApiError.
ScoreRequest read_scored_pairs(const Parameters& p, const TextModel& model);

}  // namespace megatron::server
