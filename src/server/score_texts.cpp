// POST /v1/classify, /v1/score, /v1/rerank and /pooling
#include <algorithm>
#include <functional>
#include <numeric>
#include <span>

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

// Throws ApiError if the request does not name the model, or the model has several scores.
void require_one_label(const Parameters& p, const TextModel& model) {
  check_model(p, model);
  if (const int64_t labels = model.facts().score_labels; labels != 1)
    throw invalid_request(fmt::format("the model '{}' has {} labels, and a score needs a model "
                                      "with one; use /v1/classify",
                                      model.name(), labels),
                          "model");
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
  require_one_label(p, api.model);
  const ScoredTexts scored = score(api, read_scored_pairs(p, api.model), request);
  Json::Array data;
  for (const std::vector<double>& values : scored.values)
    data.emplace_back(
        Json::Object{{"index", std::ssize(data)}, {"object", "score"}, {"score", values[0]}});
  return list_of(api, "score-", std::move(data), scored);
}

HttpAnswer rerank(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Parameters p(body);
  require_one_label(p, api.model);
  const RerankRequest r = read_rerank(p, api.model);
  const ScoredTexts scored = score(api, r.pairs, request);
  std::vector<size_t> order(r.documents.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return scored.values[i][0]; });
  Json::Array results;
  for (const size_t i : std::span(order).first(r.top)) {
    Json::Object result{{"index", static_cast<int64_t>(i)}};
    if (r.returns_documents)
      result.emplace_back("document", Json::Object{{"text", r.documents[i]}});
    result.emplace_back("relevance_score", scored.values[i][0]);
    results.emplace_back(std::move(result));
  }
  const Json answer = Json::Object{{"id", random_identifier("rerank-")},
                                   {"model", api.model.name()},
                                   {"usage", usage(scored.tokens, 0, scored.cached)},
                                   {"results", std::move(results)}};
  return {.body = answer.dump(), .note = usage_note(scored.tokens, 0)};
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
