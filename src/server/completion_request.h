// The body of POST /v1/completions.
#pragma once

#include "server/generation_parameters.h"

namespace megatron::server {

struct Prompt {
  std::string text;             // as given; decoded from tokens if those were given
  std::vector<int32_t> tokens;  // not empty
};

struct CompletionRequest {
  std::vector<Prompt> prompts;
  GenerationParameters generation;
  int64_t best_of = 1;              // texts generated per prompt, of which n are returned
  std::optional<int64_t> logprobs;  // number of alternatives per token
  bool echo = false;
};

// Throws ApiError.
CompletionRequest read_completion(const Json& body, const TextModel& model);

// Reads a text, tokens or a list of either, e.g. `prompt` of completions and `input` of embeddings.
std::vector<Prompt> read_prompts(const Parameters& p, std::string_view name, const TextModel& model,
                                 bool add_special_tokens = true);

}  // namespace megatron::server
