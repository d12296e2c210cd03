// Sampling of the next token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace megatron::inference {

// Returns the spelling of an option such as "top_p" in the source of its value: "--top-p" on the
// command line.
using OptionName = std::string (*)(std::string_view option);
std::string as_flag(std::string_view option);

// Logits processors, in the order of transformers (_get_logits_processor): logit_bias
// (SequenceBias), repetition_penalty (RepetitionPenalty), min_tokens (MinNewTokensLength), the mask
// of allowed tokens (PrefixConstrained), presence_penalty and frequency_penalty (absent from
// transformers, which runs custom processors at this point), temperature (Temperature), top_k
// (TopK), top_p (TopP), min_p (MinP). The remaining tokens are sampled by their probabilities.
// Equal logits are ranked by id: top_k 3 keeps three tokens, whereas TopK keeps all that are as
// likely as the third.
struct SamplingOptions {
  double temperature = 1;  // 0: the most likely token
  int64_t top_k = 0;       // 0: all tokens
  double top_p = 1;        // the fewest most likely tokens that together have this much probability
  double min_p = 0;        // minimum probability, relative to the most likely token's
  // Divides the positive logits of tokens in the prompt or the text so far, and multiplies the
  // negative ones (Keskar et al. 2019); 1: no penalty.
  double repetition_penalty = 1;
  // The logit of a token that occurs c > 0 times in the generated text is lowered by c
  // frequency_penalty + presence_penalty, as documented for OpenAI's API; each in [-2, 2].
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::map<int32_t, double> logit_bias;  // added to the logits of these ids; in [-100, 100]
  int64_t min_tokens = 0;                // tokens generated before an end token may be drawn
  uint64_t seed = 1234;

  // Throws Error naming option, value and limits.
  void check(OptionName name = as_flag) const;
};

struct TextSoFar {
  std::span<const int32_t> tokens;      // prompt and generated text
  size_t prompt = 0;                    // number of prompt tokens
  std::span<const int32_t> end_tokens;  // not drawn before min_tokens
  // Bit id % 64 of word id / 64 allows a token; empty: all are allowed.
  std::span<const uint64_t> allowed;
};

// Concerns one request only: its constraints allow no next token.
class NothingAllowed : public Error {
 public:
  using Error::Error;
};

// Samples a token, as a function of the arguments alone: uses random number `tokens.size()` of
// stream (seed, request) and takes the first id whose cumulative probability exceeds it. logits:
// for the ids that may be sampled; other arguments are ignored for ids beyond them. Throws Error if
// a logit is NaN or the largest one is not finite.
int32_t draw(std::span<const float> logits, const TextSoFar& text, const SamplingOptions& options,
             uint64_t request);

// Returns the largest logit. Throws Error if a logit is NaN or the largest one is not finite.
float checked_largest(std::span<const float> logits);

// Returns the random number that draw() uses, in [0, 1).
double uniform_of(const SamplingOptions& options, uint64_t request, size_t position);
// True if draw() modifies logits before it samples.
bool changes_logits(const TextSoFar& text, const SamplingOptions& options);

// Returns the distribution that draw() samples from: the probability of each id, 0 for an id that
// is never sampled.
std::vector<double> probabilities(std::span<const float> logits, const TextSoFar& text,
                                  const SamplingOptions& options);

// Returns the k most likely tokens, most likely first (equal ones by id).
std::vector<int32_t> most_likely(std::span<const float> logits, int64_t k);

}  // namespace megatron::inference
