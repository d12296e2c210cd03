// Request fields shared by all endpoints that generate text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "inference/beam_options.h"
#include "inference/sampling.h"
#include "server/parameters.h"
#include "server/text_model.h"

namespace megatron::server {

struct GenerationParameters {
  inference::SamplingOptions options;  // except the seed
  int64_t n = 1, priority = 0;
  std::optional<uint64_t> seed;
  std::optional<int64_t> max_tokens;
  std::optional<int64_t> prompt_logprobs;  // number of alternatives per prompt token
  std::vector<std::string> stops;
  std::vector<int32_t> stop_tokens;
  std::optional<inference::BeamOptions> beams;  // use_beam_search; `n` texts are returned
  SharedGrammar grammar;                        // constrains the text; may be null
  bool ignore_eos = false, stream = false, include_usage = false;
  bool routed_experts = false;  // return_routed_experts

  // seed_of_request: the seed if the request gives none.
  inference::SamplingOptions sampling(uint64_t seed_of_request) const;
  // For each prompt: number of engine requests, and of texts that are continued at once.
  int64_t requests() const { return beams ? 1 : n; }
  int64_t width() const { return beams ? beams->beams : n; }
  // Tokens that end the text.
  std::vector<int32_t> end_tokens(const TextModel& model) const;
};

// Reads ids of tokens of the vocabulary. Throws ApiError naming the field.
std::vector<int32_t> read_tokens(const Parameters& p, std::string_view name,
                                 const Json::Array& list, int64_t vocabulary);

// max_tokens_names: the first of these fields that the request has is used. Throws ApiError 400.
GenerationParameters read_generation(const Parameters& p, const TextModel& model,
                                     std::initializer_list<std::string_view> max_tokens_names);

// Constrains the text to the form that `response_format` names. Throws ApiError 400.
void read_response_format(const Parameters& p, const TextModel& model, GenerationParameters& g);

// Returns the result of `compile`. If that throws Error, throws ApiError 400 naming the field.
SharedGrammar read_grammar(const Parameters& p, std::string_view name,
                           const std::function<SharedGrammar()>& compile);

// Throws ApiError 400 if prompt_logprobs for this total number of prompt tokens exceeds
// kMaxPromptLogprobs.
void require_prompt_logprobs(const GenerationParameters& parameters, int64_t tokens);

// Throws ApiError 400 if the experts of this many tokens exceed kMaxRoutedExperts.
void require_routed_experts(const models::ModelFacts& model, int64_t tokens);

// Throws ApiError 404 if another model is named; without a name the request is for this model.
void check_model(const Parameters& p, const TextModel& model);
void check_model(std::string_view name, const TextModel& model);

// Returns the number of tokens that may follow a prompt: `asked`, or else `usual`, or else all that
// fit. Throws ApiError 400 naming `field` if the prompt, or the prompt with its text, exceeds the
// context.
int64_t room_for_text(const TextModel& model, int64_t prompt_tokens,
                      const std::optional<int64_t>& asked, std::optional<int64_t> usual,
                      const char* field = "prompt");

constexpr int64_t kMaxTexts = 128;  // per request
// Most entries in an answer, including alternatives.
constexpr int64_t kMaxPromptLogprobs = 1 << 20;
constexpr int64_t kMaxLogprobs = 20;            // most alternatives per token
constexpr int64_t kMaxRoutedExperts = 1 << 22;  // most experts in an answer

}  // namespace megatron::server
