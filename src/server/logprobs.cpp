#include "server/logprobs.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace megatron::server {
namespace {

Json::Object chat_entry(const TextModel& model, const inference::Draw& draw) {
  const std::string raw = model.token_bytes(draw.token);
  Json::Array bytes;
  for (const char byte : raw) bytes.emplace_back(int64_t{static_cast<unsigned char>(byte)});
  std::string text;
  append_lossy(raw, true, text);
  return {{"token", std::move(text)},
          {"logprob", log_probability(draw.log_probability)},
          {"bytes", std::move(bytes)}};
}

std::span<const inference::Draw> first(const inference::PromptAlternatives& at, int64_t most) {
  return std::span(at.likely).first(std::min(at.likely.size(), static_cast<size_t>(most)));
}

}  // namespace

Json log_probability(double value) { return std::max(value, -9999.0); }

std::string token_name(const TextModel& model, int32_t id) {
  const std::string raw = model.token_bytes(id);
  if (first_invalid_byte(raw) == raw.size()) return raw;
  std::string name = "bytes:";
  for (const char byte : raw)
    name += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(byte)));
  return name;
}

Json chat_logprobs(const TextModel& model, std::span<const TextToken> tokens) {
  Json::Array content;
  for (const TextToken& one : tokens) {
    Json::Object entry = chat_entry(model, one.token.draw);
    Json::Array alternatives;
    for (const inference::Draw& other : one.token.alternatives)
      alternatives.emplace_back(chat_entry(model, other));
    entry.emplace_back("top_logprobs", std::move(alternatives));
    content.emplace_back(std::move(entry));
  }
  return Json::Object{{"content", std::move(content)}, {"refusal", Json()}};
}

Json prompt_logprobs(const TextModel& model, std::span<const int32_t> tokens,
                     std::span<const double> log_probabilities,
                     std::span<const inference::PromptAlternatives> alternatives, int64_t most) {
  Json::Array all = {Json()};
  for (size_t i = 0; i < alternatives.size(); ++i) {
    Json::Object by_id;
    const auto put = [&](const inference::Draw& draw, int64_t rank) {
      std::string text;
      append_lossy(model.token_bytes(draw.token), true, text);
      by_id.emplace_back(std::to_string(draw.token),
                         Json::Object{{"logprob", log_probability(draw.log_probability)},
                                      {"rank", rank},
                                      {"decoded_token", std::move(text)}});
    };
    const int32_t own = tokens[i + 1];
    put({own, log_probabilities[i]}, alternatives[i].rank);
    int64_t rank = 0;
    for (const inference::Draw& draw : first(alternatives[i], most)) {
      ++rank;
      if (draw.token != own) put(draw, rank);
    }
    all.emplace_back(std::move(by_id));
  }
  return Json(std::move(all));
}

void CompletionLogprobs::append(const std::string& token, Json log_probability, Json alternatives,
                                int64_t offset) {
  tokens_.emplace_back(token);
  log_probabilities_.push_back(std::move(log_probability));
  alternatives_.push_back(std::move(alternatives));
  offsets_.emplace_back(offset);
}

// The token itself follows its alternatives unless it is one of them; of equal names the first
// counts.
Json CompletionLogprobs::by_name(std::span<const inference::Draw> alternatives,
                                 const inference::Draw& token) const {
  Json::Object all;
  const auto put = [&](const inference::Draw& draw) {
    const std::string name = token_name(model_, draw.token);
    for (const auto& [other, value] : all)
      if (other == name) return;
    all.emplace_back(name, log_probability(draw.log_probability));
  };
  for (const inference::Draw& other : alternatives) put(other);
  put(token);
  return Json(std::move(all));
}

void CompletionLogprobs::add_prompt(std::string_view text, std::span<const int32_t> tokens,
                                    std::span<const double> log_probabilities,
                                    std::span<const inference::PromptAlternatives> alternatives,
                                    int64_t most) {
  tokenizers::DecodeStream stream(model_.tokenizer());
  int64_t at = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool known = i > 0 && i - 1 < log_probabilities.size();
    append(token_name(model_, tokens[i]),
           known ? log_probability(log_probabilities[i - 1]) : Json(),
           most > 0 && i > 0 && i - 1 < alternatives.size()
               ? by_name(first(alternatives[i - 1], most), {tokens[i], log_probabilities[i - 1]})
               : Json(),
           at);
    at += count_characters(stream.push(tokens[i]));
  }
  characters_ = count_characters(text);
}

int64_t CompletionLogprobs::characters_up_to(size_t bytes) {
  const size_t end = std::min(bytes, text_.size());
  if (end > counted_) {
    characters_ += count_characters(std::string_view(text_).substr(counted_, end - counted_));
    counted_ = end;
  }
  return characters_;
}

void CompletionLogprobs::add(const Piece& piece) {
  text_ += piece.text;
  for (const TextToken& one : piece.tokens) {
    append(token_name(model_, one.token.draw.token),
           log_probability(one.token.draw.log_probability),
           by_name(one.token.alternatives, one.token.draw), characters_up_to(one.begin));
  }
}

Json CompletionLogprobs::take() {
  return Json::Object{{"tokens", std::exchange(tokens_, {})},
                      {"token_logprobs", std::exchange(log_probabilities_, {})},
                      {"top_logprobs", std::exchange(alternatives_, {})},
                      {"text_offset", std::exchange(offsets_, {})}};
}

}  // namespace megatron::server
