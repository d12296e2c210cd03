// Bodies of the endpoints of models with a score head, with vLLM's fields.
#pragma once

#include <string>
#include <vector>

#include "server/parameters.h"
#include "server/text_model.h"
#include "tokenizers/text_ends.h"

namespace megatron::server {

// How a request's texts are cut: its fields truncate_prompt_tokens and truncation_side.
struct Truncation {
  int64_t tokens = 0;  // at most this many are kept; 0: all
  bool keeps_start = true;
  tokenizers::TextEnds ends = {};  // of an encoder's tokenizer; they stay

  void cut(std::vector<int32_t>& text) const;
};
// Throws ApiError.
Truncation read_truncation(const Parameters& p, const TextModel& model);

struct ScoreRequest {
  std::vector<std::vector<int32_t>> texts;  // tokens
  // Token types of each text, for an encoder's pairs; or none.
  std::vector<std::vector<int32_t>> types = {};
  bool activation = true;  // probabilities instead of scores
  int64_t priority = 0;
};

// POST /v1/classify and /pooling: `input` or `messages`. Throws ApiError.
ScoreRequest read_scored_texts(const Parameters& p, const TextModel& model);
// POST /v1/score: pairs of texts, each of which is read as one text: as the tokenizer joins them,
// with its token types. Of an encoder's pair the longer text is cut first. Throws ApiError.
ScoreRequest read_scored_pairs(const Parameters& p, const TextModel& model);

// POST /v1/rerank: each of `documents` after the query, scored as a pair. Throws ApiError.
struct RerankRequest {
  ScoreRequest pairs;
  std::vector<std::string> documents;
  size_t top = 0;  // how many are returned
  bool returns_documents = true;
};
RerankRequest read_rerank(const Parameters& p, const TextModel& model);

}  // namespace megatron::server
