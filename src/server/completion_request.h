// The body of POST /v1/completions.
#pragma once

#include "server/generation_parameters.h"

namespace megatron::server {

struct Prompt {
  std::string text;             // as it was given; of tokens, what they decode to
  std::vector<int32_t> tokens;  // not empty
};

struct CompletionRequest {
  std::vector<Prompt> prompts;
  GenerationParameters generation;
  int64_t best_of = 1;              // texts of a prompt, of which n are answered
  std::optional<int64_t> logprobs;  // alternatives of each token
  bool echo = false;
};

// Throws ApiError.
CompletionRequest read_completion(const Json& body, const TextModel& model);

// Reads a text, tokens or a list of either, e.g. `prompt` of completions and `input` of embeddings.
std::vector<Prompt> read_prompts(const Parameters& p, std::string_view name,
                                 const TextModel& model);

}  // namespace megatron::server
