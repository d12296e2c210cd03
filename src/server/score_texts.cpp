// POST /v1/classify, /v1/score and /pooling
#include <algorithm>

#include "inference/scores.h"
#include "server/endpoints.h"
#include "server/identifier.h"
#include "server/score_request.h"

namespace megatron::server {
namespace {

// The values of each text: probabilities, or scores if those are requested.
struct ScoredTexts {
  std::vector<std::vector<double>> values;
  int64_t tokens = 0, cached = 0;
};

ScoredTexts score(const Api& api, const ScoreRequest& r, const HttpRequest& request) {
  const models::ModelFacts& facts = api.model.facts();
  const auto activation = r.activation ? facts.score_activation : models::ScoreActivation::none;
  ScoredTexts scored{.values = std::vector<std::vector<double>>(r.texts.size())};
  std::vector<inference::Request> requests;
  for (const auto& text : r.texts) {
    scored.tokens += std::ssize(text);
    requests.push_back(inference::score_request(facts, text, requests.size()));
    requests.back().adapter = api.model.adapter();
    requests.back().priority = r.priority;
  }
  const auto call = api.engine.submit(std::move(requests), api.deadline());
  for (size_t finished = 0; finished < r.texts.size();) {
    for (const EngineEvent& event : call->wait(kTick)) {
      if (event.failure) fail_with(*event.failure, event.update.error);
      if (!event.update.finish) continue;
      scored.values[event.request] = inference::activated(activation, event.update.scores);
      ++finished;
    }
    if (request.client_gone()) throw ClientGone();
  }
  for (size_t i = 0; i < r.texts.size(); ++i) scored.cached += call->cached_tokens(i);
  return scored;
}

HttpAnswer list_of(const Api& api, const char* id_prefix, Json::Array data,
                   const ScoredTexts& scored) {
  const Json answer = Json::Object{{"id", random_identifier(id_prefix)},
                                   {"object", "list"},
                                   {"created", seconds_since_1970()},
                                   {"model", api.model.name()},
                                   {"data", std::move(data)},
                                   {"usage", usage(scored.tokens, 0, scored.cached)}};
  return {.body = answer.dump(), .note = usage_note(scored.tokens, 0)};
}

Json numbers(const std::vector<double>& values) {
  return Json(Json::Array(values.begin(), values.end()));
}

}  // namespace

HttpAnswer classify(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const ScoredTexts scored = score(api, read_scored_texts(Parameters(body), api.model), request);
  Json::Array data;
  for (const std::vector<double>& values : scored.values) {
    const auto best = static_cast<size_t>(std::ranges::max_element(values) - values.begin());
    data.emplace_back(Json::Object{{"index", std::ssize(data)},
                                   {"label", api.model.facts().label_names[best]},
                                   {"probs", numbers(values)},
                                   {"num_classes", std::ssize(values)}});
  }
  return list_of(api, "classify-", std::move(data), scored);
}

HttpAnswer score_pairs(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Parameters p(body);
  check_model(p, api.model);
  if (const int64_t labels = api.model.facts().score_labels; labels != 1)
    throw invalid_request(
        fmt::format("the model '{}' has {} labels, and a score needs a model with "
                    "one; use /v1/classify",
                    api.model.name(), labels),
        "model");
  const ScoredTexts scored = score(api, read_scored_pairs(p, api.model), request);
  Json::Array data;
  for (const std::vector<double>& values : scored.values)
    data.emplace_back(
        Json::Object{{"index", std::ssize(data)}, {"object", "score"}, {"score", values[0]}});
  return list_of(api, "score-", std::move(data), scored);
}

HttpAnswer pool(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Parameters p(body);
  const std::string task = p.text("task").value_or("classify");
  if (task != "classify")
    p.fail("task", "is " + shown(Json(task)) + "; this model has the task \"classify\"");
  const std::string format = p.text("encoding_format").value_or("float");
  if (format != "float")
    p.fail("encoding_format", "is " + shown(Json(format)) + "; it must be \"float\"");
  const ScoredTexts scored = score(api, read_scored_texts(p, api.model), request);
  Json::Array data;
  for (const std::vector<double>& values : scored.values)
    data.emplace_back(Json::Object{
        {"index", std::ssize(data)}, {"object", "pooling"}, {"data", numbers(values)}});
  return list_of(api, "pooling-", std::move(data), scored);
}

}  // namespace megatron::server
