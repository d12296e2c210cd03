// How the next token is drawn.
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

// How an option, "top_p", is called where its value came from: on the command line "--top-p".
using OptionName = std::string (*)(std::string_view option);
std::string as_flag(std::string_view option);

// What is done to the logits, in the order of transformers' processors (_get_logits_processor):
//   logit_bias (SequenceBias), repetition_penalty (RepetitionPenalty), min_tokens
//   (MinNewTokensLength), the mask of allowed tokens (PrefixConstrained), presence_penalty and
//   frequency_penalty (not in transformers, where custom processors stand here), temperature
//   (Temperature), top_k (TopK), top_p (TopP), min_p (MinP).
// What is left is drawn from by its probabilities. Equal logits rank by id: top_k 3 keeps three
// tokens, where TopK keeps all that are as likely as the third.
struct SamplingOptions {
  double temperature = 1;  // 0: the most likely token
  int64_t top_k = 0;       // 0: all tokens
  double top_p = 1;        // the fewest most likely tokens that together have this much probability
  double min_p = 0;  // only tokens with at least this share of the likeliest one's probability
  // Logits of tokens in the prompt or the text so far are divided by it where positive and
  // multiplied where negative (Keskar et al. 2019); 1: none.
  double repetition_penalty = 1;
  // The logit of a token that the generated text has c > 0 times is lowered by
  // c frequency_penalty + presence_penalty, as OpenAI's API documents it; each in [-2, 2].
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::map<int32_t, double> logit_bias;  // added to the logits of these ids; in [-100, 100]
  int64_t min_tokens = 0;                // generated before an end token may be drawn
  uint64_t seed = 1234;

  // Throws Error naming option, value and limits.
  void check(OptionName name = as_flag) const;
};

struct TextSoFar {
  std::span<const int32_t> tokens;      // prompt and generated text
  size_t prompt = 0;                    // the first so many of them
  std::span<const int32_t> end_tokens;  // not drawn before min_tokens
  std::span<const uint64_t> allowed;    // bit id % 64 of word id / 64: may be drawn; empty: all
};

// Of a request alone: what it allows to be drawn next is nothing.
class NothingAllowed : public Error {
 public:
  using Error::Error;
};

// A function of its arguments alone: it uses random number `tokens.size()` of stream (seed,
// request), and takes the first id whose cumulative probability exceeds it. logits: of the ids that
// may be drawn; what the other arguments say of ids beyond is ignored. Throws Error for a logit
// that is NaN, or where the largest is not finite.
int32_t draw(std::span<const float> logits, const TextSoFar& text, const SamplingOptions& options,
             uint64_t request);

// The random number that draw() uses, in [0, 1).
double uniform_of(const SamplingOptions& options, uint64_t request, size_t position);
// Whether draw() changes logits before it draws.
bool changes_logits(const TextSoFar& text, const SamplingOptions& options);

// What draw() draws from: the probability of each id, 0 where it is never drawn.
std::vector<double> probabilities(std::span<const float> logits, const TextSoFar& text,
                                  const SamplingOptions& options);

// The k most likely tokens, most likely first (equal ones by id).
std::vector<int32_t> most_likely(std::span<const float> logits, int64_t k);

}  // namespace megatron::inference
