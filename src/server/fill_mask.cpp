// POST /v1/fill-mask
#include "inference/fill_mask.h"

#include "server/completion_request.h"
#include "server/score_request.h"
#include "server/text_answers.h"

namespace megatron::server {

HttpAnswer fill_mask(const Api& api, const HttpRequest& request) {
  constexpr int64_t kMost = 1000;
  const Json body = parse_body(request.body);
  const Parameters p(body);
  check_model(p, api.model);
  p.refuse({"targets", "dimensions"});
  const char* const field = p.find("inputs") != nullptr ? "inputs" : "input";
  const int64_t top = p.integer("top_k", 1, std::min(kMost, api.model.vocabulary()))
                          .value_or(std::min(inference::kUsualFillings, api.model.vocabulary()));
  const Truncation truncation = read_truncation(p, api.model);
  const std::vector<Prompt> texts = read_prompts(p, field, api.model);
  std::vector<inference::Request> requests;
  for (Prompt text : texts) {
    truncation.cut(text.tokens);
    room_for_text(api.model, std::ssize(text.tokens), 0, {}, field);
    try {
      requests.push_back(
          inference::fill_request(api.model.tokenizer(), text.tokens, top, requests.size()));
    } catch (const Error& e) {
      p.fail(field, fmt::format("cannot be filled: {}", e.what()));
    }
  }
  std::vector<std::vector<int32_t>> tokens;
  for (const inference::Request& one : requests) tokens.push_back(one.prompt);
  const TextAnswers answers = answers_of(api, std::move(requests), request);
  Json::Array all;
  for (size_t i = 0; i < tokens.size(); ++i)
    all.push_back(inference::fillings_json(inference::fillings(
        api.model.tokenizer(), tokens[i], answers.updates[i].prompt_alternatives)));
  const Json* const given = p.find(field);
  const bool one = given->is_string() || (all.size() == 1 && given->as_array()[0].is_integer());
  const Json answer = one ? all[0] : Json(std::move(all));
  return {.body = answer.dump(), .note = usage_note(answers.tokens, 0)};
}

}  // namespace megatron::server
