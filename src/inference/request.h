// Requests for generated text and their results.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "inference/adapter.h"
#include "inference/beam_options.h"
#include "inference/constraint/grammar.h"
#include "inference/constraint/token_bytes.h"
#include "inference/sampling.h"
#include "models/model.h"

namespace megatron::inference {

// Which hidden states of a text its embedding has: their mean, or the first or the last one.
enum class Pooling { mean, first_token, last_token };

// The embedding of a text (inference/embedding.h). unit: scaled to length 1.
struct EmbeddingForm {
  Pooling pooling = Pooling::mean;
  bool unit = true;
  bool operator==(const EmbeddingForm&) const = default;
};

// A token of a text that a masked language model predicts, and the label whose log-probability is
// wanted in its place.
struct MaskedToken {
  int32_t index = 0, label = 0;
};

struct Request {
  uint64_t number = 0;  // selects its random numbers
  // Not empty, at most as long as the model's positions. An encoder-decoder reads it with its
  // encoder, and its text follows the start token alone (ModelFacts::start_token).
  std::vector<int32_t> prompt;
  int64_t max_tokens = 128;
  SamplingOptions sampling;
  std::vector<int32_t> end_tokens;  // generation stops after any of them
  // -1: none; n: log-probabilities of the prompt's tokens, and of the n most likely ones at each
  // generated token.
  int64_t logprobs = -1;
  // With logprobs: first prompt token that gets one; cached tokens before it are not recomputed.
  int64_t first_scored = 1;
  // Used with logprobs: number of most likely tokens to return at each scored prompt token, in
  // addition to that token's rank. -1: neither is returned.
  int64_t prompt_alternatives = -1;
  // Grammar that constrains the generated text, over `token_bytes` of the model's tokenizer; null:
  // unconstrained.
  std::shared_ptr<const Grammar> grammar;
  std::shared_ptr<const TokenBytes> token_bytes;
  // Scores of the prompt by a model with a score head, which generates nothing
  // (inference/scores.h).
  bool scores = false;
  // For encoders, which generate nothing: the embedding of the prompt, or predictions of masked
  // tokens: the label's log-probability, and the alternatives if prompt_alternatives are wanted.
  std::optional<EmbeddingForm> embedding = {};
  std::vector<MaskedToken> masked = {};
  std::vector<int32_t> token_types = {};  // of the prompt's tokens, for an encoder; empty: 0
  // The adapter that the whole request uses; null: none. If ranks divide the model, each holds its
  // part of the adapter under the same number.
  std::shared_ptr<const Adapter> adapter;
  // Requests the experts that each token was sent to (RequestUpdate::expert_choices).
  bool expert_choices = false;
  // In [-100, 100]: lower ones are served first, but those that have waited much longer precede
  // them.
  int64_t priority = 0;
  // Beam search instead of sampling, whose options then keep their defaults, except min_tokens (and
  // temperature 0 means the same as 1).
  std::optional<BeamOptions> beams = {};

  // vocabulary: only ids below it are sampled. name: spelling of options in messages. Throws Error
  // if the model cannot take the request.
  void check(const models::Model& model, int64_t vocabulary, OptionName name = as_flag) const;
  // The part of check() that concerns `beams`, without a model.
  void check_beams(OptionName name = as_flag) const;
  uint64_t adapter_number() const { return adapter == nullptr ? 0 : adapter->number(); }
  // Maximum number of tokens of prompt and text that the model's positions allow; of an
  // encoder-decoder, of the start token and text.
  int64_t longest(const models::Model& model) const;
  // Maximum number of tokens of a text in the cache: also of that of an encoder.
  int64_t longest_cached(const models::Model& model) const;
  // Tokens that the text follows.
  std::vector<int32_t> given(const models::ModelFacts& model) const;
  // Maximum number of texts that are continued at a time.
  int64_t width() const { return beams ? beams->beams : 1; }

 private:
  void check_of_encoder(const models::Model& model) const;
  void check_of_encoder_decoder(const models::Model& model, OptionName name) const;
};

// A token and its log-probability under the model itself, in nats: temperature 1, no cuts, all of
// the model's ids. It is minus the loss that training and evaluation compute for it, bit for bit.
struct Draw {
  int32_t token = 0;
  double log_probability = 0;
};

// The most likely tokens in the place of a prompt token, most likely first, and the rank of the
// prompt token itself among all tokens that may be drawn. Rank 1 is the most likely token, ties go
// to the lower id, and 0 means that the token may not be drawn.
struct PromptAlternatives {
  std::vector<Draw> likely;
  int64_t rank = 0;
};

struct GeneratedToken {
  Draw draw;
  std::vector<Draw>
      alternatives;  // the most likely tokens in descending order, possibly including this one
};

// stop: ended by the caller. positions: the last token was sampled at the model's last position.
// complete: the request's grammar allows no continuation. failed: no token could be sampled.
// scored: the prompt's scores are given, or what else is asked of it (embedding, masked tokens).
enum class Finish { length, end_token, stop, positions, complete, failed, scored };

// Seconds cover forward passes and sampling.
struct Statistics {
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int64_t decoded_tokens = 0;  // from decode passes; the prompt's pass gives the first token
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t steps = 0;  // forward passes
  // Seconds of steps spent outside of forward passes and draws: choosing rows, pages, updates.
  double between_seconds = 0;
  double draw_seconds = 0;
  int64_t cached_tokens = 0;  // prompt tokens that were found in the cache
  int64_t preemptions = 0;    // requests that gave up their pages and must be recomputed
  // Decode passes captured as CUDA graphs, and those launched as graphs, including the captured
  // ones.
  int64_t graphs_recorded = 0, graph_launches = 0;
  int64_t graph_bytes =
      0;  // bytes that such passes have in addition to all other memory; maximum over engines

  Statistics& operator+=(const Statistics& more);
};

}  // namespace megatron::inference
