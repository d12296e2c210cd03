// Log-probabilities in the formats of the API's replies.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/json.h"
#include "server/choice.h"

namespace megatron::server {

// Tokens as objects {token, logprob, bytes, top_logprobs}, the format of chats.
Json chat_logprobs(const TextModel& model, std::span<const TextToken> tokens);

// {tokens, token_logprobs, top_logprobs, text_offset}, the format of completions, built part by
// part.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const TextModel& model) : model_(model) {}

  // Adds the prompt if the reply repeats it before the text. log_probabilities: of its tokens from
  // the second on. alternatives: at each of these tokens, of which `most` are used; may be empty.
  void add_prompt(std::string_view text, std::span<const int32_t> tokens,
                  std::span<const double> log_probabilities,
                  std::span<const inference::PromptAlternatives> alternatives = {},
                  int64_t most = 0);
  void add(const Piece& piece);
  Json take();  // everything added since the last call

 private:
  int64_t characters_up_to(size_t bytes);
  Json by_name(std::span<const inference::Draw> alternatives, const inference::Draw& token) const;
  void append(const std::string& token, Json log_probability, Json alternatives, int64_t offset);

  const TextModel& model_;
  std::string text_;        // text so far, without the prompt
  size_t counted_ = 0;      // bytes of text_ already counted
  int64_t characters_ = 0;  // characters in those bytes and in the prompt
  Json::Array tokens_, log_probabilities_, alternatives_, offsets_;
};

// The tokens of a prompt in the form of vLLM's `prompt_logprobs`: null for the first, then for each
// an object by token id of {logprob, rank, decoded_token}, for the token itself and the `most` most
// likely ones.
Json prompt_logprobs(const TextModel& model, std::span<const int32_t> tokens,
                     std::span<const double> log_probabilities,
                     std::span<const inference::PromptAlternatives> alternatives, int64_t most);

// A log-probability as JSON; it is at least -9999, because JSON has no infinity.
Json log_probability(double value);

// The text of a token in completions; "bytes:\xe2\x80" if it does not consist of whole characters.
std::string token_name(const TextModel& model, int32_t id);

}  // namespace megatron::server
