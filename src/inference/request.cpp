#include "inference/request.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace megatron::inference {

void Request::check(const models::Model& model, int64_t vocabulary, OptionName name) const {
  const auto length = static_cast<int64_t>(prompt.size());
  MG_CHECK(length > 0, "the prompt of request {} is empty; give some text", number);
  MG_CHECK(
      length <= model->context_length(),
      "the prompt of request {} has {} tokens, but the model has only {} positions; shorten it",
      number, length, model->context_length());
  for (const int32_t id : prompt) {
    MG_CHECK(id >= 0 && id < model->vocab_size(),
             "the prompt of request {} contains token {}, but the model's ids are [0, {}): this is "
             "not the model's tokenizer",
             number, id, model->vocab_size());
  }
  MG_CHECK(priority >= -100 && priority <= 100, "{} is {}; it must be from -100 to 100",
           name("priority"), priority);
  MG_CHECK(
      (grammar == nullptr) == (token_bytes == nullptr),
      "request {} has only one of a grammar and the bytes of its tokens; it needs both or neither",
      number);
  MG_CHECK(max_tokens >= 0, "{} is {}; it cannot be negative", name("max_tokens"), max_tokens);
  MG_CHECK(logprobs >= -1 && logprobs <= vocabulary,
           "{} is {}, but there are only {} tokens to choose from", name("logprobs"), logprobs,
           vocabulary);
  MG_CHECK(prompt_alternatives <= vocabulary &&
               (prompt_alternatives < 0 || logprobs >= 0 || !masked.empty()),
           "request {} asks for {} alternatives to each token of its prompt; at most {} are "
           "possible, and only together with log-probabilities",
           number, prompt_alternatives, vocabulary);
  MG_CHECK(first_scored >= 1 && first_scored <= length,
           "request {} asks for log-probabilities from token {} on, but its prompt has {} tokens: "
           "give a token from 1 to {}",
           number, first_scored, length, length);
  if (model->facts().encoder_layers > 0) check_of_encoder_decoder(model, name);
  if (model->facts().two_sided) check_of_encoder(model);
  else
    MG_CHECK(
        masked.empty() && !embedding && token_types.empty(),
        "request {} asks for masked tokens or for token types, but the model is {} ({}), which "
        "predicts the next token; use an encoder with a masked language model's head (BERT "
        "and the like)",
        number, model->facts().encoder_layers > 0 ? "an encoder-decoder" : "a decoder",
        model->family());
  MG_CHECK(embedding || scores == (model->score_labels() > 0),
           "request {} asks for {}, but the model has {}", number, scores ? "scores" : "a text",
           scores ? "a language-model head; models with a score head (ForSequenceClassification in "
                    "config.json) give scores"
                  : fmt::format("a head of {} scores, and generates none", model->score_labels()));
  MG_CHECK(!scores || (max_tokens == 0 && logprobs < 0 && grammar == nullptr),
           "request {} asks for scores, which exclude {}, log-probabilities and a grammar", number,
           name("max_tokens"));
  MG_CHECK(!expert_choices || model->facts().experts.has_value(),
           "{} asks for the experts of each token, but the model has no layer with experts",
           name("return_routed_experts"));
  sampling.check(name);
  MG_CHECK(sampling.min_tokens <= max_tokens,
           "{} is {}, but {} is only {}; lower the former or raise the latter", name("min_tokens"),
           sampling.min_tokens, name("max_tokens"), max_tokens);
  for (const auto& [id, bias] : sampling.logit_bias) {
    MG_CHECK(id >= 0 && id < vocabulary,
             "{} names token {}, but the ids to choose from are [0, {})", name("logit_bias"), id,
             vocabulary);
  }
  if (!beams) return;
  check_beams(name);
  MG_CHECK(beams->beams <= vocabulary, "{} is {}, but there are only {} tokens to choose from",
           name("num_beams"), beams->beams, vocabulary);
  constexpr double kExponent = 600;  // e^600 is a finite number, as are its inverse and their sums
  const int64_t tokens = std::max<int64_t>(2, std::min(max_tokens, model->context_length()));
  const double most = kExponent / std::log(static_cast<double>(tokens));
  MG_CHECK(std::abs(beams->length_penalty) <= most,
           "{} is {}, but scores of texts of up to {} tokens are out of range with it; it must lie "
           "in [{:.1f}, {:.1f}]",
           name("length_penalty"), beams->length_penalty, tokens, -most, most);
}

void Request::check_beams(OptionName name) const {
  MG_CHECK(beams->beams >= 1 && beams->beams <= BeamOptions::kMostBeams,
           "{} is {}; it must be from 1 to {}", name("num_beams"), beams->beams,
           BeamOptions::kMostBeams);
  MG_CHECK(beams->returned >= 1 && beams->returned <= beams->beams,
           "{} is {}; it must be from 1 to {}, the number of beams", name("num_return_sequences"),
           beams->returned, beams->beams);
  MG_CHECK(std::isfinite(beams->length_penalty) && std::abs(beams->length_penalty) <= 100,
           "{} is {}; it must lie in [-100, 100]", name("length_penalty"), beams->length_penalty);
  MG_CHECK(max_tokens > 0, "{} is 0, but beam search needs at least one token", name("max_tokens"));
  const auto exclude = [&](bool given, std::string_view option) {
    MG_CHECK(!given,
             "{} and {} exclude each other: beam search finds the most likely texts and does not "
             "sample; drop one of them",
             name("num_beams"), name(option));
  };
  exclude(sampling.temperature != 0 && sampling.temperature != 1, "temperature");
  exclude(sampling.top_k != 0, "top_k");
  exclude(sampling.top_p != 1, "top_p");
  exclude(sampling.min_p != 0, "min_p");
  exclude(sampling.repetition_penalty != 1, "repetition_penalty");
  exclude(sampling.presence_penalty != 0, "presence_penalty");
  exclude(sampling.frequency_penalty != 0, "frequency_penalty");
  exclude(!sampling.logit_bias.empty(), "logit_bias");
  exclude(expert_choices, "return_routed_experts");
  MG_CHECK(grammar == nullptr,
           "request {} has both a grammar and beams; beam search does not follow grammars", number);
}

void Request::check_of_encoder(const models::Model& model) const {
  const models::ModelFacts& facts = model->facts();
  MG_CHECK(max_tokens == 0 && (scores || embedding || !masked.empty()),
           "request {} asks for a text, but the model is an encoder ({}), which generates none; "
           "ask for {} or embeddings",
           number, model->family(), facts.score_labels > 0 ? "its scores" : "masked tokens");
  MG_CHECK(masked.empty() || facts.predicts_masked,
           "request {} asks for masked tokens, but the model ({}) has a head of {} scores; use one "
           "with a masked language model's head",
           number, model->family(), facts.score_labels);
  for (const MaskedToken& token : masked)
    MG_CHECK(token.index >= 0 && token.index < std::ssize(prompt) && token.label >= 0 &&
                 token.label < facts.vocab_size,
             "request {} asks for label {} at token {}; the text has {} tokens, and the model's "
             "ids are [0, {})",
             number, token.label, token.index, prompt.size(), facts.vocab_size);
  MG_CHECK(token_types.empty() || token_types.size() == prompt.size(),
           "request {} has {} token types for {} tokens; give as many, or none", number,
           token_types.size(), prompt.size());
  for (const int32_t type : token_types)
    MG_CHECK(type >= 0 && type < std::max<int64_t>(facts.token_types, 1),
             "request {} has token type {}, but the model's types are [0, {})", number, type,
             std::max<int64_t>(facts.token_types, 1));
}

void Request::check_of_encoder_decoder(const models::Model& model, OptionName name) const {
  MG_CHECK(
      model->facts().start_token >= 0,
      "the model ({}) does not say which token its texts begin with, so none can be generated; "
      "add decoder_start_token_id to its config.json (start-token in one of type megatron)",
      model->family());
  MG_CHECK(model->context_class(model->context_length()) == 0,
           "the rotary angles of this encoder-decoder ({}) change with the length of a text, which "
           "differs between encoder and decoder; lower --inference-max-seq-length, which is {}",
           model->family(), model->context_length());
  MG_CHECK(max_tokens > 0,
           "{} is 0, but an encoder-decoder ({}) gives nothing but a text; raise it",
           name("max_tokens"), model->family());
  MG_CHECK(first_scored == 1 && prompt_alternatives < 0,
           "request {} asks for log-probabilities of its prompt, which the encoder of {} reads and "
           "does not predict; ask for those of the text alone",
           number, model->family());
  MG_CHECK(!expert_choices,
           "{} asks for the experts of each token of a prompt and its text, and an encoder-decoder "
           "({}) reads them separately; leave it out",
           name("return_routed_experts"), model->family());
}

std::vector<int32_t> Request::given(const models::ModelFacts& model) const {
  if (model.encoder_layers == 0) return prompt;
  return {static_cast<int32_t>(model.start_token)};
}

int64_t Request::longest(const models::Model& model) const {
  const int64_t length =
      model->facts().encoder_layers > 0 ? 1 : static_cast<int64_t>(prompt.size());
  return length + std::min(max_tokens, model->context_length() - length);
}

int64_t Request::longest_cached(const models::Model& model) const {
  return std::max(longest(model), static_cast<int64_t>(prompt.size()));
}

Statistics& Statistics::operator+=(const Statistics& more) {
  prompt_tokens += more.prompt_tokens;
  generated_tokens += more.generated_tokens;
  decoded_tokens += more.decoded_tokens;
  prefill_seconds += more.prefill_seconds;
  decode_seconds += more.decode_seconds;
  steps += more.steps;
  between_seconds += more.between_seconds;
  draw_seconds += more.draw_seconds;
  cached_tokens += more.cached_tokens;
  preemptions += more.preemptions;
  graphs_recorded += more.graphs_recorded;
  graph_launches += more.graph_launches;
  graph_bytes = std::max(graph_bytes, more.graph_bytes);
  return *this;
}

}  // namespace megatron::inference
