// Continuing prompts with a cache of keys and values.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "inference/sampling.h"
#include "models/stage.h"

namespace megatron::inference {

struct Request {
  uint64_t number = 0;          // names its random numbers
  std::vector<int32_t> prompt;  // not empty, and no longer than the model's positions
  int64_t max_tokens = 128;
  SamplingOptions sampling;
  std::vector<int32_t> end_tokens;  // generation stops after one of them
  std::function<bool(std::span<const int32_t> generated)>
      stop;               // asked after each token (and after on_token); may be empty
  int64_t logprobs = -1;  // -1: none; n: of the prompt's tokens, and of the n most likely at each
                          // generated one
};

// A token and its log-probability under the model itself, in nats: temperature 1, no cuts, all of
// the model's ids. It is minus the loss that training and evaluation compute for it, bit for bit.
struct Draw {
  int32_t token = 0;
  double log_probability = 0;
};

struct GeneratedToken {
  Draw draw;
  std::vector<Draw>
      alternatives;  // the most likely tokens, most likely first, among them maybe this
};

// positions: the last token was drawn from the last position that the model has.
enum class Finish { length, end_token, stop, positions };

struct Generation {
  std::vector<GeneratedToken> tokens;
  std::vector<double> prompt_log_probabilities;  // of prompt tokens 1.. when logprobs >= 0
  Finish finish = Finish::length;
};

// What a call did; seconds are those of the forward passes and draws.
struct Statistics {
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int64_t decoded_tokens = 0;  // of decode passes: a prompt's pass gives the first token, too
  double prefill_seconds = 0, decode_seconds = 0;
};

struct GenerateOptions {
  int64_t vocabulary = 0;            // only ids below it are drawn; 0: all that the model knows
  int64_t batch = 8;                 // sequences at once; a result depends on no batch, bit for bit
  int64_t prefill = 512;             // prompt tokens of a forward pass
  Statistics* statistics = nullptr;  // added to; may be null
};

// Continues all requests: as many at once as the batch has places, and the next one as soon as a
// place is free. On meta every token is one of equal logits'. Prompts are read in pieces; after that each pass gives one token of every
// sequence. on_token sees each token as it comes. Throws Error for a request that the model cannot
// take, before any is begun.
std::vector<Generation> generate(
    const models::Stage& stage, Runtime& runtime, std::span<const Request> requests,
    const GenerateOptions& options,
    const std::function<void(size_t request, const GeneratedToken&)>& on_token = {});

}  // namespace megatron::inference
