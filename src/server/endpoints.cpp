#include "server/endpoints.h"

#include <ctime>

#include "server/chat_request.h"
#include "server/completion_request.h"

namespace megatron::server {

int64_t seconds_since_1970() { return static_cast<int64_t>(std::time(nullptr)); }

Json usage(int64_t prompt_tokens, int64_t generated_tokens, int64_t cached) {
  return Json::Object{{"prompt_tokens", prompt_tokens},
                      {"completion_tokens", generated_tokens},
                      {"total_tokens", prompt_tokens + generated_tokens},
                      {"prompt_tokens_details", Json::Object{{"cached_tokens", cached}}}};
}

std::string usage_note(int64_t prompt_tokens, int64_t generated_tokens) {
  return fmt::format("{} prompt tokens, {} generated", prompt_tokens, generated_tokens);
}

namespace {

Json description(const TextModel& model) {
  Json::Object object = {{"id", model.name()},
                         {"object", "model"},
                         {"created", model.created()},
                         {"owned_by", "megatron"},
                         {"max_model_len", model.context()},
                         {"chat", model.has_chat_template()}};
  if (model.adapter() != nullptr) object.emplace_back("parent", model.parent());
  const std::vector<std::string>& labels = model.facts().label_names;
  if (model.scores()) object.emplace_back("labels", Json::Array(labels.begin(), labels.end()));
  return Json(std::move(object));
}

}  // namespace

HttpAnswer list_models(const Api& api, const HttpRequest&) {
  Json::Array models;
  models.push_back(description(api.model));
  for (const auto& adapter : api.adapters.all()) models.push_back(description(*adapter));
  return {.body = Json(Json::Object{{"object", "list"}, {"data", std::move(models)}}).dump()};
}

HttpAnswer show_model(const Api& api, const HttpRequest& request) {
  std::string_view id = request.path;  // already decoded by the HTTP server
  id.remove_prefix(std::string_view("/v1/models/").size());
  if (id.ends_with('/')) id.remove_suffix(1);
  if (const auto adapter = api.adapters.find(id)) return {.body = description(*adapter).dump()};
  check_model(id, api.model);
  return {.body = description(api.model).dump()};
}

HttpAnswer tokenize(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Parameters p(body);
  check_model(p, api.model);
  std::vector<int32_t> tokens;
  if (p.find("messages") != nullptr) {
    if (p.find("prompt") != nullptr) p.fail("prompt", "and messages are both given; use one");
    tokens = render(read_messages(p), api.model).tokens;
  } else {
    const std::optional<std::string> text = p.text("prompt");
    if (!text) p.fail("prompt", "is missing; give prompt or messages");
    const bool special = p.boolean("add_special_tokens").value_or(true);
    if (!text->empty()) tokens = api.model.encode(*text, special);
  }
  Json::Array ids, names;
  for (const int32_t id : tokens) ids.emplace_back(int64_t{id});
  Json::Object answer = {{"count", std::ssize(tokens)},
                         {"max_model_len", api.model.context()},
                         {"tokens", std::move(ids)}};
  if (p.boolean("return_token_strs").value_or(false)) {
    for (const int32_t id : tokens) names.emplace_back(api.model.tokenizer().token(id));
    answer.emplace_back("token_strs", std::move(names));
  }
  return {.body = Json(std::move(answer)).dump(), .note = usage_note(std::ssize(tokens), 0)};
}

HttpAnswer detokenize(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Parameters p(body);
  check_model(p, api.model);
  const Json::Array* list = p.array("tokens");
  if (list == nullptr) p.fail("tokens", "is missing");
  const std::vector<int32_t> tokens = read_tokens(p, "tokens", *list, api.model.vocabulary());
  const bool skip = p.boolean("skip_special_tokens").value_or(false);
  return {.body = Json(Json::Object{{"prompt", api.model.tokenizer().decode(tokens, skip)}}).dump(),
          .note = usage_note(std::ssize(tokens), 0)};
}

}  // namespace megatron::server
