// POST /v1/classify, /v1/score, /v1/rerank and /pooling
#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <span>

#include "inference/scores.h"
#include "server/identifier.h"
#include "server/score_request.h"
#include "server/text_answers.h"

namespace megatron::server {
namespace {

// The values of each text: probabilities, or scores if those are requested; of a model with labels
// of tokens, those of all its tokens.
struct ScoredTexts {
  std::vector<std::vector<double>> values;
  int64_t tokens = 0, cached = 0;
};

ScoredTexts score(const Api& api, const ScoreRequest& r, const HttpRequest& request) {
  const models::ModelFacts& facts = api.model.facts();
  const bool spans = facts.scored == models::ScoredTokens::span;  // their softmax is over tokens
  const auto activation =
      r.activation && !spans ? facts.score_activation : models::ScoreActivation::none;
  std::vector<inference::Request> requests;
  for (const auto& text : r.texts) {
    requests.push_back(inference::score_request(facts, text, requests.size()));
    requests.back().priority = r.priority;
    if (!r.types.empty()) {
      requests.back().token_types = r.types[requests.size() - 1];
      if (!requests.back().token_types.empty())
        requests.back().token_types.resize(requests.back().prompt.size());
    }
  }
  const TextAnswers answers = answers_of(api, std::move(requests), request);
  ScoredTexts scored{.values = {}, .tokens = 0, .cached = answers.cached};
  for (const auto& text : r.texts) scored.tokens += std::ssize(text);  // with their padding
  const auto labels = static_cast<size_t>(facts.score_labels);
  for (const inference::RequestUpdate& update : answers.updates) {
    std::vector<double>& values = scored.values.emplace_back();
    for (size_t at = 0; at < update.scores.size(); at += labels)
      std::ranges::copy(
          inference::activated(activation, std::span(update.scores).subspan(at, labels)),
          std::back_inserter(values));
  }
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

Json numbers(std::span<const double> values) {
  return Json(Json::Array(values.begin(), values.end()));
}

// The labels that apply to a text: those of scores above 0, which are probabilities above one half.
Json applying(std::span<const double> values, bool activated, const models::ModelFacts& facts) {
  Json::Array labels;
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] > (activated ? 0.5 : 0)) labels.emplace_back(facts.label_names[i]);
  return Json(std::move(labels));
}

// The scores of a text, or of a model with labels of tokens a list of each token's.
Json pooled(const std::vector<double>& values, const models::ModelFacts& facts) {
  if (inference::scores_texts(facts)) return numbers(values);
  const auto labels = static_cast<size_t>(facts.score_labels);
  Json::Array tokens;
  for (size_t at = 0; at < values.size(); at += labels)
    tokens.push_back(numbers(std::span(values).subspan(at, labels)));
  return Json(std::move(tokens));
}

// Throws ApiError if the model scores tokens instead of texts.
void require_scores_of_texts(const TextModel& model, std::string_view path) {
  if (!inference::scores_texts(model.facts()))
    throw invalid_request(fmt::format("the model '{}' has scores of each token, and {} gives those "
                                      "of a text; use /pooling",
                                      model.name(), path),
                          "model", "wrong_kind_of_model");
}

// Throws ApiError if the request does not name the model, or the model has several scores.
void require_one_label(const Parameters& p, const TextModel& model, std::string_view path) {
  check_model(p, model);
  require_scores_of_texts(model, path);
  if (const int64_t labels = model.facts().score_labels; labels != 1)
    throw invalid_request(fmt::format("the model '{}' has {} labels, and a score needs a model "
                                      "with one; use /v1/classify",
                                      model.name(), labels),
                          "model");
}

}  // namespace

HttpAnswer classify(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  require_scores_of_texts(api.model, "/v1/classify");
  const models::ModelFacts& facts = api.model.facts();
  const ScoreRequest r = read_scored_texts(Parameters(body), api.model);
  const ScoredTexts scored = score(api, r, request);
  Json::Array data;
  for (const std::vector<double>& values : scored.values) {
    const auto best = static_cast<size_t>(std::ranges::max_element(values) - values.begin());
    Json::Object result = {{"index", std::ssize(data)},
                           {"label", facts.label_names[best]},
                           {"probs", numbers(values)},
                           {"num_classes", std::ssize(values)}};
    if (facts.multi_label) result.emplace_back("labels", applying(values, r.activation, facts));
    data.emplace_back(std::move(result));
  }
  return list_of(api, "classify-", std::move(data), scored);
}

HttpAnswer score_pairs(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Parameters p(body);
  require_one_label(p, api.model, "/v1/score");
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
  require_one_label(p, api.model, "/v1/rerank");
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
  const std::string own =
                        inference::scores_texts(api.model.facts()) ? "classify" : "token_classify",
                    task = p.text("task").value_or(own);
  if (task != own)
    p.fail("task", "is " + shown(Json(task)) + "; this model has the task \"" + own + "\"");
  const std::string format = p.text("encoding_format").value_or("float");
  if (format != "float")
    p.fail("encoding_format", "is " + shown(Json(format)) + "; it must be \"float\"");
  const ScoredTexts scored = score(api, read_scored_texts(p, api.model), request);
  Json::Array data;
  for (const std::vector<double>& values : scored.values)
    data.emplace_back(Json::Object{{"index", std::ssize(data)},
                                   {"object", "pooling"},
                                   {"data", pooled(values, api.model.facts())}});
  return list_of(api, "pooling-", std::move(data), scored);
}

}  // namespace megatron::server
