// PUT /api, as in Megatron-LM's static text generation server.
#include "server/completion_request.h"
#include "server/endpoints.h"
#include "server/identifier.h"
#include "server/logprobs.h"

namespace megatron::server {
namespace {

struct MegatronRequest {
  std::vector<Prompt> prompts;
  GenerationParameters generation;
  bool logprobs = false;
};

std::vector<Prompt> read_megatron_prompts(const Parameters& p, const TextModel& model) {
  const Json::Array* list = p.array("prompts");
  if (list == nullptr || list->empty())
    p.fail("prompts", list == nullptr ? "is missing" : "is empty; give at least one");
  if (std::ssize(*list) > kMaxTexts)
    p.fail("prompts", fmt::format("has {} texts; at most {} are allowed", list->size(), kMaxTexts));
  const bool add_bos = p.boolean("add_BOS").value_or(false);
  const std::optional<int32_t> begin =
      model.tokenizer().bos() ? model.tokenizer().bos() : model.tokenizer().eod();
  if (add_bos && !begin) p.fail("add_BOS", "is true, but the tokenizer has no such token");
  std::vector<Prompt> prompts;
  for (const Json& text : *list) {
    if (!text.is_string())
      p.fail("prompts", "contains " + shown(text) + "; it must contain strings");
    if (text.as_string().empty() && !add_bos)
      p.fail("prompts", "contains an empty text, which needs add_BOS: true");
    Prompt prompt{text.as_string(), {}};
    if (!prompt.text.empty()) prompt.tokens = model.encode(prompt.text, model.encodes());
    if (add_bos) prompt.tokens.insert(prompt.tokens.begin(), *begin);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// As in Megatron-LM, all beams of one prompt are returned.
void read_beam_width(const Parameters& p, MegatronRequest& r) {
  GenerationParameters& g = r.generation;
  const std::optional<int64_t> width = p.integer("beam_width", 1, kMaxTexts);
  if (!width) return p.refuse({{"length_penalty", 1}});
  if (r.prompts.size() > 1)
    p.fail("beam_width", fmt::format("is for one prompt, but prompts has {}", r.prompts.size()));
  const auto exclude = [&](bool given, const char* name) {
    if (given) p.fail(name, "excludes beam_width, which samples no text; leave out one of them");
  };
  exclude(g.options.temperature != 1, "temperature");
  exclude(g.options.top_k != 0, "top_k");
  exclude(g.options.top_p != 1, "top_p");
  exclude(r.logprobs, "logprobs");
  g.n = *width;
  g.beams =
      inference::BeamOptions{.beams = *width,
                             .returned = *width,
                             .length_penalty = p.number("length_penalty", -100, 100).value_or(1)};
}

MegatronRequest read_megatron(const Json& body, const TextModel& model) {
  const Parameters p(body);
  for (const auto& [old, now] :
       {std::pair{"max_len", "tokens_to_generate"}, {"sentences", "prompts"}})
    if (p.find(old) != nullptr) p.fail(old, fmt::format("is no longer supported; use {}", now));
  constexpr int64_t kUsualTokens = 64, kMaxTopK = 1000;
  MegatronRequest r;
  GenerationParameters& g = r.generation;
  r.logprobs = p.boolean("logprobs").value_or(false);
  g.max_tokens = p.integer("tokens_to_generate", 0, INT64_MAX).value_or(kUsualTokens);
  if (g.max_tokens == 0 && (!r.logprobs || model.encodes()))
    p.fail("tokens_to_generate",
           model.encodes() ? "is 0; give at least 1" : "is 0, which needs logprobs: true");
  g.options.temperature = p.number("temperature", 0, 100).value_or(1);
  if (g.options.temperature == 0)
    p.fail("temperature", "is 0; it must be above 0, and top_k: 1 is greedy");
  g.options.top_k = p.integer("top_k", 0, std::min(kMaxTopK, model.vocabulary())).value_or(0);
  const double top_p = p.number("top_p", 0, 1).value_or(0);
  if (top_p > 0 && g.options.top_k > 0)
    p.fail("top_p", "and top_k are both given; use one of them");
  if (top_p > 0) g.options.top_p = top_p;
  if (const auto seed = p.integer("random_seed", 0, INT64_MAX))
    g.seed = static_cast<uint64_t>(*seed);
  p.boolean("no_log");  // accepted: texts are never logged
  p.refuse({"top_p_decay", "top_p_bound", "stop_token", "stop_on_eol", "stop_on_double_eol",
            "prevent_newline_after_colon", "top_n_logprobs"});
  r.prompts = read_megatron_prompts(p, model);
  read_beam_width(p, r);
  return r;
}

}  // namespace

HttpAnswer megatron_generate(const Api& api, const HttpRequest& request) {
  const TextModel& model = api.model;
  const MegatronRequest r = read_megatron(parse_body(request.body), model);
  const uint64_t seed = random_seed();
  std::vector<ChoicePlan> plans;
  int64_t prompt_tokens = 0;
  for (const Prompt& prompt : r.prompts) {
    const int64_t room =
        room_for_text(model, std::ssize(prompt.tokens), r.generation.max_tokens, {}, "prompts");
    plans.push_back(plan_choice(r.generation, model, prompt.tokens, room, plans.size(), seed));
    if (r.logprobs) plans.back().request.logprobs = 0;
    prompt_tokens += std::ssize(prompt.tokens);
  }
  Generation generation(model, api.engine, std::move(plans), api.deadline());
  generation.finish(request.client_gone);

  Json::Array texts, segments, logprobs, scores;
  for (size_t i = 0; i < generation.choices().size(); ++i) {
    Choice& choice = generation.choices()[i];
    const Prompt& prompt = r.prompts[r.generation.beams ? 0 : i];
    const Piece piece = choice.take_piece();
    texts.emplace_back(model.encodes() ? piece.text : prompt.text + piece.text);
    scores.emplace_back(choice.score());
    Json::Array names, of_tokens;
    if (!model.encodes())
      for (const int32_t id : prompt.tokens) names.emplace_back(token_name(model, id));
    for (const double value : choice.prompt_log_probabilities())
      of_tokens.push_back(log_probability(value));
    for (const TextToken& one : piece.tokens) {
      names.emplace_back(token_name(model, one.token.draw.token));
      of_tokens.push_back(log_probability(one.token.draw.log_probability));
    }
    segments.emplace_back(std::move(names));
    logprobs.emplace_back(std::move(of_tokens));
  }
  Json::Object answer = {{"text", std::move(texts)}, {"segments", std::move(segments)}};
  if (r.generation.beams) answer.emplace_back("scores", std::move(scores));
  else answer.emplace_back("logprobs", r.logprobs ? Json(std::move(logprobs)) : Json());
  return {.body = Json(std::move(answer)).dump(),
          .note = usage_note(prompt_tokens, generation.generated_tokens())};
}

}  // namespace megatron::server
