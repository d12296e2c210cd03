// POST /v1/embeddings
#include <cstring>

#include "server/completion_request.h"
#include "server/endpoints.h"
#include "server/score_request.h"
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

}  // namespace

HttpAnswer embed(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Parameters p(body);
  check_model(p, api.model);
  const std::string format = p.text("encoding_format").value_or("float");
  if (format != "float" && format != "base64")
    p.fail("encoding_format", "is " + shown(Json(format)) + "; it must be \"float\" or \"base64\"");
  p.refuse({"dimensions"});
  const Truncation truncation = read_truncation(p, api.model);
  std::vector<Prompt> inputs = read_prompts(p, "input", api.model);
  int64_t tokens = 0;
  for (Prompt& input : inputs) {
    truncation.cut(input.tokens);
    room_for_text(api.model, std::ssize(input.tokens), 0, {}, "input");
    tokens += std::ssize(input.tokens);
  }
  const std::optional<Clock::time_point> deadline = api.deadline();
  Json::Array data;
  for (const Prompt& input : inputs) {
    if (request.client_gone()) throw ClientGone();
    if (deadline && Clock::now() > *deadline) throw deadline_exceeded();
    const std::vector<float> values = api.engine.embedding(input.tokens, api.model.adapter());
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
