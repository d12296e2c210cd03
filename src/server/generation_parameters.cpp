#include "server/generation_parameters.h"

#include <algorithm>

#include "base/text_parts.h"
#include "inference/expert_choices.h"
#include "server/forms.h"

namespace megatron::server {
namespace {

constexpr size_t kMaxStops = 16, kMaxStopTokens = 128;

std::vector<std::string> read_stops(const Parameters& p) {
  const Json* stop = p.find("stop");
  if (stop == nullptr) return {};
  std::vector<std::string> stops;
  if (stop->is_string()) {
    stops.push_back(stop->as_string());
  } else if (stop->is_array()) {
    for (const Json& one : stop->as_array()) {
      if (!one.is_string()) p.fail("stop", "contains " + shown(one) + "; it must contain strings");
      stops.push_back(one.as_string());
    }
  } else {
    p.fail("stop", "is " + shown(*stop) + "; it must be a string or a list of strings");
  }
  if (stops.size() > kMaxStops)
    p.fail("stop", fmt::format("has {} strings; at most {} are allowed", stops.size(), kMaxStops));
  for (const std::string& one : stops)
    if (one.empty()) p.fail("stop", "contains an empty string, at which every text would end");
  return stops;
}

std::vector<int32_t> read_stop_tokens(const Parameters& p, int64_t vocabulary) {
  const Json::Array* list = p.array("stop_token_ids");
  if (list == nullptr) return {};
  if (list->size() > kMaxStopTokens)
    p.fail("stop_token_ids",
           fmt::format("has {} ids; at most {} are allowed", list->size(), kMaxStopTokens));
  return read_tokens(p, "stop_token_ids", *list, vocabulary);
}

std::map<int32_t, double> read_logit_bias(const Parameters& p, int64_t vocabulary) {
  const Json* map = p.find("logit_bias");
  if (map == nullptr) return {};
  if (!map->is_object())
    p.fail("logit_bias",
           "is " + shown(*map) + "; it must be an object that maps token ids to biases");
  std::map<int32_t, double> biases;
  for (const auto& [key, bias] : map->as_object()) {
    const int32_t id = parse_number<int32_t>(key).value_or(-1);
    if (id < 0 || id >= vocabulary)
      p.fail("logit_bias", fmt::format("has the key {}; token ids are from 0 to {}",
                                       shown(Json(key)), vocabulary - 1));
    if (!bias.is_number() || !(bias.as_number() >= -100 && bias.as_number() <= 100))
      p.fail("logit_bias",
             fmt::format("gives token {} the bias {}; it must be a number from -100 to 100", id,
                         shown(bias)));
    biases[id] = bias.as_number();
  }
  return biases;
}

void read_prompt_logprobs(const Parameters& p, const TextModel& model, GenerationParameters& g) {
  g.prompt_logprobs = p.integer("prompt_logprobs", 0, std::min(kMaxLogprobs, model.vocabulary()));
  if (g.prompt_logprobs && model.encodes())
    p.fail("prompt_logprobs",
           "is given, but this model reads prompts with an encoder, which does "
           "not predict their tokens; leave it out");
  if (!g.stream || !g.prompt_logprobs) return;
  if (*g.prompt_logprobs > 0)
    p.fail("prompt_logprobs", "cannot be streamed; leave out stream or prompt_logprobs");
  g.prompt_logprobs.reset();  // in a stream, 0 means none, as in vLLM
}

void read_routed_experts(const Parameters& p, const TextModel& model, GenerationParameters& g) {
  constexpr const char* kName = "return_routed_experts";
  g.routed_experts = p.boolean(kName).value_or(false);
  if (!g.routed_experts) return;
  if (!model.facts().experts) p.fail(kName, "is true, but the model has no layer with experts");
  if (g.stream) p.fail(kName, "cannot be streamed; leave out stream or return_routed_experts");
}

inference::EarlyStopping read_early_stopping(const Parameters& p) {
  const Json* given = p.find("early_stopping");
  if (given == nullptr || *given == Json(false)) return inference::EarlyStopping::no;
  if (*given == Json(true)) return inference::EarlyStopping::yes;
  if (*given == Json("never")) return inference::EarlyStopping::never;
  p.fail("early_stopping", "is " + shown(*given) + "; it must be true, false or \"never\"");
}

// The options of use_beam_search. Fails for fields that it excludes.
void read_beams(const Parameters& p, GenerationParameters& g) {
  if (!p.boolean("use_beam_search").value_or(false))
    return p.refuse({"early_stopping", {"length_penalty", 1}});
  g.beams =
      inference::BeamOptions{.beams = p.integer("best_of", 1, kMaxTexts).value_or(g.n),
                             .returned = g.n,
                             .length_penalty = p.number("length_penalty", -100, 100).value_or(1),
                             .early_stopping = read_early_stopping(p)};
  if (g.beams->beams < g.n)
    p.fail("best_of", fmt::format("is {}, less than n, {}", g.beams->beams, g.n));
  const inference::SamplingOptions& o = g.options;
  const auto exclude = [&](bool given, const char* name, const char* neutral) {
    if (given)
      p.fail(name, fmt::format("cannot be combined with use_beam_search, which does not sample; "
                               "leave out one of them, or set {} to {}",
                               name, neutral));
  };
  exclude(o.temperature != 0 && o.temperature != 1, "temperature", "0 or 1");
  exclude(o.top_p != 1, "top_p", "1");
  exclude(o.top_k != 0, "top_k", "0");
  exclude(o.min_p != 0, "min_p", "0");
  exclude(o.repetition_penalty != 1, "repetition_penalty", "1");
  exclude(o.presence_penalty != 0, "presence_penalty", "0");
  exclude(o.frequency_penalty != 0, "frequency_penalty", "0");
  exclude(!o.logit_bias.empty(), "logit_bias", "{}");
  exclude(!g.stops.empty(), "stop", "[]; stop_token_ids end beams");
  exclude(g.routed_experts, "return_routed_experts", "false");
}

void read_stream(const Parameters& p, GenerationParameters& g) {
  g.stream = p.boolean("stream").value_or(false);
  const std::optional<Parameters> options = p.object("stream_options");
  if (!options) return;
  if (!g.stream) p.fail("stream_options", "is only allowed with stream: true");
  g.include_usage = options->boolean("include_usage").value_or(false);
}

}  // namespace

std::vector<int32_t> read_tokens(const Parameters& p, std::string_view name,
                                 const Json::Array& list, int64_t vocabulary) {
  std::vector<int32_t> tokens;
  tokens.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_integer() || id.as_integer() < 0 || id.as_integer() >= vocabulary)
      p.fail(name, fmt::format("contains {}; token ids are integers from 0 to {}", shown(id),
                               vocabulary - 1));
    tokens.push_back(static_cast<int32_t>(id.as_integer()));
  }
  return tokens;
}

inference::SamplingOptions GenerationParameters::sampling(uint64_t seed_of_request) const {
  inference::SamplingOptions all = options;
  all.seed = seed.value_or(seed_of_request);
  return all;
}

std::vector<int32_t> GenerationParameters::end_tokens(const TextModel& model) const {
  std::vector<int32_t> all = stop_tokens;
  if (!ignore_eos) all.insert(all.end(), model.end_tokens().begin(), model.end_tokens().end());
  return all;
}

GenerationParameters read_generation(const Parameters& p, const TextModel& model,
                                     std::initializer_list<std::string_view> max_tokens_names) {
  GenerationParameters g;
  inference::SamplingOptions& o = g.options;
  o.temperature = p.number("temperature", 0, 2).value_or(1);
  o.top_p = p.number("top_p", 0, 1).value_or(1);
  if (o.top_p == 0) p.fail("top_p", "is 0; it must be above 0, and 1 keeps all tokens");
  o.min_p = p.number("min_p", 0, 1).value_or(0);
  o.top_k = std::max<int64_t>(p.integer("top_k", -1, INT64_MAX).value_or(0), 0);  // -1: all, too
  o.repetition_penalty = p.number("repetition_penalty", 0, 10).value_or(1);
  if (o.repetition_penalty == 0) p.fail("repetition_penalty", "is 0; it must be above 0");
  o.presence_penalty = p.number("presence_penalty", -2, 2).value_or(0);
  o.frequency_penalty = p.number("frequency_penalty", -2, 2).value_or(0);
  o.logit_bias = read_logit_bias(p, model.vocabulary());
  if (const auto seed = p.integer("seed", INT64_MIN, INT64_MAX))
    g.seed = static_cast<uint64_t>(*seed);
  for (const std::string_view name : max_tokens_names) {
    const auto most = p.integer(name, 0, INT64_MAX);
    if (most && !g.max_tokens) g.max_tokens = most;
  }
  o.min_tokens = p.integer("min_tokens", 0, g.max_tokens.value_or(INT64_MAX)).value_or(0);
  g.n = p.integer("n", 1, kMaxTexts).value_or(1);
  g.stops = read_stops(p);
  g.stop_tokens = read_stop_tokens(p, model.vocabulary());
  g.ignore_eos = p.boolean("ignore_eos").value_or(false);
  g.priority = p.integer("priority", -100, 100).value_or(0);
  g.grammar = read_form(p, model);
  read_stream(p, g);
  read_prompt_logprobs(p, model, g);
  read_routed_experts(p, model, g);
  read_beams(p, g);
  p.refuse({"guided_grammar",
            "bad_words",
            "allowed_token_ids",
            "truncate_prompt_tokens",
            "include_stop_str_in_output",
            "logits_processors",
            "multi_modal_data",
            {"typical_p", 1},
            {"skip_special_tokens", true}});
  return g;
}

void read_response_format(const Parameters& p, const TextModel& model, GenerationParameters& g) {
  const std::optional<Parameters> format = p.object("response_format");
  if (!format) return;
  const std::string type = format->text("type").value_or("");
  if (type == "text") return;
  if (g.grammar)
    format->fail("type", "cannot be used together with a tool that must be called or guided_*");
  if (type == "json_object") {
    g.grammar = read_grammar(*format, "type", [&] { return model.grammars().json_object(); });
  } else if (type == "json_schema") {
    const std::optional<Parameters> of = format->object("json_schema");
    const Json* schema = of ? of->find("schema") : nullptr;
    if (schema == nullptr)
      format->fail("json_schema", "must be {\"name\": ..., \"schema\": {...}}");
    const bool strict = of->boolean("strict").value_or(false);
    g.grammar =
        read_grammar(*of, "schema", [&] { return model.grammars().json_schema(*schema, strict); });
  } else {
    format->fail("type", "is " + shown(Json(type)) +
                             "; it must be \"text\", \"json_object\" or \"json_schema\"");
  }
}

SharedGrammar read_grammar(const Parameters& p, std::string_view name,
                           const std::function<SharedGrammar()>& compile) {
  try {
    return compile();
  } catch (const Error& e) {
    p.fail(name, std::string("cannot be used: ") + e.what());
  }
}

void require_routed_experts(const models::ModelFacts& model, int64_t tokens) {
  if (tokens == 0) return;
  const int64_t each = inference::choices_per_token(model.experts.value());
  if (tokens > kMaxRoutedExperts / each)
    throw invalid_request(
        fmt::format("return_routed_experts for {} tokens of prompts and texts makes {} experts, {} "
                    "for each token; at most {} can be returned at once: lower max_tokens or n",
                    tokens, tokens * each, each, kMaxRoutedExperts),
        "return_routed_experts");
}

void require_prompt_logprobs(const GenerationParameters& parameters, int64_t tokens) {
  if (!parameters.prompt_logprobs) return;
  const int64_t all = tokens * (1 + *parameters.prompt_logprobs);
  if (all > kMaxPromptLogprobs)
    throw invalid_request(fmt::format("prompt_logprobs {} for {} tokens of prompts makes {} "
                                      "log-probabilities; at most {} can be returned at once",
                                      *parameters.prompt_logprobs, tokens, all, kMaxPromptLogprobs),
                          "prompt_logprobs");
}

void check_model(const Parameters& p, const TextModel& model) {
  if (const std::optional<std::string> name = p.text("model")) check_model(*name, model);
}

void check_model(std::string_view name, const TextModel& model) {
  if (name == model.name()) return;
  throw ApiError(404, "invalid_request_error",
                 fmt::format("there is no model {}; this server has {}", shown(Json(name)),
                             shown(Json(model.name()))),
                 "model", "model_not_found");
}

int64_t room_for_text(const TextModel& model, int64_t prompt_tokens,
                      const std::optional<int64_t>& asked, std::optional<int64_t> usual,
                      const char* field) {
  // A text that does not continue the prompt has positions of its own.
  const bool apart = model.encodes();
  if (apart && prompt_tokens > model.context())
    throw invalid_request(fmt::format("the prompt has {} tokens, and the encoder of this model "
                                      "reads at most {}; shorten it",
                                      prompt_tokens, model.context()),
                          field, "context_length_exceeded");
  const int64_t room = model.context() - (apart ? 1 : prompt_tokens);
  if (apart && asked && *asked > room)
    throw invalid_request(
        fmt::format("max_tokens is {}, but a text of this model has at most {} tokens", *asked,
                    room),
        "max_tokens", "context_length_exceeded");
  const auto refuse = [&](const std::string& found) {
    throw invalid_request(
        fmt::format(
            "this model supports at most {} tokens of prompt and output, but {}; shorten it",
            model.context(), found),
        field, "context_length_exceeded");
  };
  if (room < 0) refuse(fmt::format("the prompt has {}", prompt_tokens));
  if (asked && *asked > room)
    refuse(fmt::format("the prompt has {} and up to {} are requested", prompt_tokens, *asked));
  if (!asked && room == 0)
    refuse(fmt::format("the prompt has {}, so none can be generated", prompt_tokens));
  return asked ? *asked : std::min(usual.value_or(room), room);
}

}  // namespace megatron::server
