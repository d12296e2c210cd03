#include "server/score_request.h"

#include <utility>

#include "server/chat_request.h"
#include "server/completion_request.h"

namespace megatron::server {
namespace {

// use_activation, or one of its former names.
bool read_activation(const Parameters& p) {
  for (const char* name : {"use_activation", "activation", "softmax"})
    if (const auto given = p.boolean(name)) return *given;
  return true;
}

ScoreRequest read_common(const Parameters& p, const TextModel& model) {
  check_model(p, model);
  ScoreRequest r;
  r.activation = read_activation(p);
  r.priority = p.integer("priority", -100, 100).value_or(0);
  p.refuse({"truncate_prompt_tokens",
            "dimensions",
            "mm_processor_kwargs",
            "cache_salt",
            {"padding", "do_not_pad"}});
  return r;
}

void check_lengths(const ScoreRequest& r, const TextModel& model, const char* field) {
  for (const auto& text : r.texts) room_for_text(model, std::ssize(text), 0, {}, field);
}

// A string or a list of them.
std::vector<std::string> read_texts(const Parameters& p, const char* name) {
  const Json* given = p.find(name);
  if (given == nullptr) p.fail(name, "is missing");
  if (given->is_string()) return {given->as_string()};
  if (!given->is_array() || given->as_array().empty())
    p.fail(name, "is " + shown(*given) + "; it must be a string or a list of strings");
  std::vector<std::string> texts;
  for (const Json& text : given->as_array()) {
    if (!text.is_string()) p.fail(name, "contains " + shown(text) + "; it must contain strings");
    texts.push_back(text.as_string());
  }
  if (std::ssize(texts) > kMaxTexts)
    p.fail(name, fmt::format("has {} texts; at most {} are allowed", texts.size(), kMaxTexts));
  return texts;
}

}  // namespace

ScoreRequest read_scored_texts(const Parameters& p, const TextModel& model) {
  ScoreRequest r = read_common(p, model);
  const bool chat = p.find("messages") != nullptr;
  const auto special = p.boolean("add_special_tokens");
  if (chat && p.find("input") != nullptr) p.fail("input", "and messages are both given; use one");
  if (chat) {
    const RenderedPrompt prompt = render(read_messages(p, false), model);
    r.texts.push_back(special ? model.encode(prompt.text, *special) : prompt.tokens);
  } else {
    for (Prompt& prompt : read_prompts(p, "input", model, special.value_or(true)))
      r.texts.push_back(std::move(prompt.tokens));
  }
  check_lengths(r, model, chat ? "messages" : "input");
  return r;
}

ScoreRequest read_scored_pairs(const Parameters& p, const TextModel& model) {
  ScoreRequest r = read_common(p, model);
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"queries", "documents"}, {"queries", "items"}, {"data_1", "data_2"}, {"text_1", "text_2"}};
  std::pair<const char*, const char*> names = kNames[3];
  for (const auto& [first, second] : kNames) {
    if (p.find(first) == nullptr || p.find(second) == nullptr) continue;
    names = {first, second};
    break;
  }
  const std::vector<std::string> first = read_texts(p, names.first),
                                 second = read_texts(p, names.second);
  if (first.size() != 1 && first.size() != second.size())
    p.fail(names.second, fmt::format("has {} texts, but {} has {}; give one text or as many in {}",
                                     second.size(), names.first, first.size(), names.first));
  for (size_t i = 0; i < second.size(); ++i) {
    std::vector<int32_t>& tokens = r.texts.emplace_back();
    for (const std::string& text : {first[first.size() == 1 ? 0 : i], second[i]}) {
      const std::vector<int32_t> part = model.tokenizer().encode(text, true);
      tokens.insert(tokens.end(), part.begin(), part.end());
    }
    if (tokens.empty()) p.fail(names.second, "and its other text are both empty; give some text");
  }
  check_lengths(r, model, names.second);
  return r;
}

}  // namespace megatron::server
