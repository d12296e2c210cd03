// How the next token is drawn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megatron::inference {

// What is done to the logits, in this order (that of transformers' processors): repetition penalty,
// temperature, top-k, top-p, min-p; what is left is drawn from by its probabilities. Equal logits
// rank by id.
struct SamplingOptions {
  double temperature = 1;  // 0: the most likely token
  int64_t top_k = 0;       // 0: all tokens
  double top_p = 1;        // the fewest most likely tokens that together have this much probability
  double min_p = 0;  // only tokens with at least this share of the likeliest one's probability
  // Logits of tokens in the prompt or the text so far are divided by it where positive and
  // multiplied where negative (Keskar et al. 2019); 1: none.
  double repetition_penalty = 1;
  uint64_t seed = 1234;

  void check() const;  // throws Error naming the flag
};

// A function of (logits, the tokens so far, options, request) alone: it uses random number
// `tokens.size()` of stream (seed, request). logits: of the ids that may be drawn. tokens: prompt
// and text so far. Throws Error for a logit that is NaN, or where none is finite.
int32_t draw(std::span<const float> logits, std::span<const int32_t> tokens,
             const SamplingOptions& options, uint64_t request);

// The k most likely tokens, most likely first (equal ones by id).
std::vector<int32_t> most_likely(std::span<const float> logits, int64_t k);

}  // namespace megatron::inference
