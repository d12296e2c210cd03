// POST /v1/embeddings
#include <cstring>

#include "server/completion_request.h"
#include "server/endpoints.h"
#include "server/score_request.h"
#include "server/text_answers.h"
#include "tokenizers/base64.h"

namespace megatron::server {
namespace {

Json in_base64(const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return tokenizers::to_base64(bytes);
}

Json in_numbers(const std::vector<float>& values) {
  Json::Array numbers;
  for (const float value : values) numbers.emplace_back(double{value});
  return Json(std::move(numbers));
}

// Which hidden states make the embedding, and whether it has length 1: `pooling` and `normalize`.
inference::EmbeddingForm read_embedding_form(const Parameters& p, const TextModel& model) {
  inference::EmbeddingForm form{.pooling = model.pooling(),
                                .unit = p.boolean("normalize").value_or(true)};
  const std::optional<std::string> pooling = p.text("pooling");
  if (!pooling) return form;
  if (*pooling == "mean") form.pooling = inference::Pooling::mean;
  else if (*pooling == "cls") form.pooling = inference::Pooling::first_token;
  else if (*pooling == "last") form.pooling = inference::Pooling::last_token;
  else
    p.fail("pooling", "is " + shown(Json(*pooling)) +
                          "; it must be \"mean\", \"cls\" (the first token) or \"last\"");
  return form;
}

// An encoder reads all texts at once.
std::vector<std::vector<float>> by_encoder(const Api& api, const std::vector<Prompt>& inputs,
                                           inference::EmbeddingForm form,
                                           const HttpRequest& request) {
  std::vector<inference::Request> requests;
  for (const Prompt& input : inputs)
    requests.push_back(
        {.number = requests.size(), .prompt = input.tokens, .max_tokens = 0, .embedding = form});
  std::vector<std::vector<float>> values;
  for (inference::RequestUpdate& update : answers_of(api, std::move(requests), request).updates)
    values.push_back(std::move(update.embedding));
  return values;
}

// A decoder reads them one by one.
std::vector<std::vector<float>> by_decoder(const Api& api, const std::vector<Prompt>& inputs,
                                           inference::EmbeddingForm form,
                                           const HttpRequest& request) {
  const std::optional<Clock::time_point> deadline = api.deadline();
  std::vector<std::vector<float>> values;
  for (const Prompt& input : inputs) {
    if (request.client_gone()) throw ClientGone();
    if (deadline && Clock::now() > *deadline) throw deadline_exceeded();
    values.push_back(api.engine.embedding(input.tokens, api.model.adapter(), form));
  }
  return values;
}

}  // namespace

HttpAnswer embed(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Parameters p(body);
  check_model(p, api.model);
  if (api.model.encodes())
    throw invalid_request(
        fmt::format("'{}' is an encoder-decoder, which gives no embeddings; serve an encoder or a "
                    "decoder for them",
                    api.model.name()),
        "model", "wrong_kind_of_model");
  const std::string format = p.text("encoding_format").value_or("float");
  if (format != "float" && format != "base64")
    p.fail("encoding_format", "is " + shown(Json(format)) + "; it must be \"float\" or \"base64\"");
  p.refuse({"dimensions"});
  const inference::EmbeddingForm form = read_embedding_form(p, api.model);
  const Truncation truncation = read_truncation(p, api.model);
  std::vector<Prompt> inputs = read_prompts(p, "input", api.model);
  int64_t tokens = 0;
  for (Prompt& input : inputs) {
    truncation.cut(input.tokens);
    room_for_text(api.model, std::ssize(input.tokens), 0, {}, "input");
    tokens += std::ssize(input.tokens);
  }
  const auto all = api.model.facts().two_sided ? by_encoder(api, inputs, form, request)
                                               : by_decoder(api, inputs, form, request);
  Json::Array data;
  for (const std::vector<float>& values : all) {
    data.emplace_back(
        Json::Object{{"object", "embedding"},
                     {"index", std::ssize(data)},
                     {"embedding", format == "base64" ? in_base64(values) : in_numbers(values)}});
  }
  const Json answer =
      Json::Object{{"object", "list"},
                   {"data", std::move(data)},
                   {"model", api.model.name()},
                   {"usage", Json::Object{{"prompt_tokens", tokens}, {"total_tokens", tokens}}}};
  return {.body = answer.dump(), .note = usage_note(tokens, 0)};
}

}  // namespace megatron::server
