#include "server/score_request.h"

#include <algorithm>
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
  p.refuse({"dimensions", "mm_processor_kwargs", "cache_salt", {"padding", "do_not_pad"}});
  return r;
}

// Cuts the texts as the request says, and checks that the model can read them.
void cut_texts(ScoreRequest& r, const Parameters& p, const TextModel& model, const char* field) {
  const Truncation truncation = read_truncation(p, model);
  for (auto& text : r.texts) {
    truncation.cut(text);
    room_for_text(model, std::ssize(text), 0, {}, field);
  }
}

// The texts of pairs, as the tokenizer joins them. As in vLLM, an encoder's are cut before that, so
// that all tokens around them stay. field: names the second ones in errors.
void add_pairs(ScoreRequest& r, const std::vector<std::string>& first,
               const std::vector<std::string>& second, const Parameters& p, const TextModel& model,
               const char* field) {
  const Truncation truncation = read_truncation(p, model);
  const tokenizers::Tokenizer& tokenizer = model.tokenizer();
  const auto around = static_cast<int64_t>(tokenizer.codec().join({}, {}).size()),
             room = truncation.tokens - around;
  const bool cuts_texts = truncation.tokens > 0 && model.facts().two_sided;
  if (cuts_texts && room <= 0)
    p.fail("truncate_prompt_tokens",
           fmt::format("is {}, and the tokenizer adds {} tokens to a pair of texts; give more",
                       truncation.tokens, around));
  std::vector<int32_t> whole;
  for (size_t i = 0; i < second.size(); ++i) {
    if (i < first.size()) whole = tokenizer.encode(first[i]);
    std::vector<int32_t> one = whole, other = tokenizer.encode(second[i]);
    if (cuts_texts) tokenizers::cut_pair(one, other, room, truncation.keeps_start);
    tokenizers::JoinedTexts joined = tokenizer.codec().join(one, other);
    if (!cuts_texts) truncation.cut(joined.ids);
    if (joined.ids.empty()) p.fail(field, "and its other text are both empty; give some text");
    room_for_text(model, std::ssize(joined.ids), 0, {}, field);
    r.types.push_back(joined.types_of_model(model.facts().token_types));
    r.texts.push_back(std::move(joined.ids));
  }
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

// The texts of documents, each of which may also be an object with its `text`.
std::vector<std::string> read_documents(const Parameters& p) {
  const Json* given = p.find("documents");
  if (given == nullptr || !given->is_array()) return read_texts(p, "documents");
  Json::Array texts = given->as_array();
  for (Json& document : texts)
    if (const Json* text = document.is_object() ? document.find("text") : nullptr)
      document = Json(*text);
  const Json list = Json::Object{{"documents", std::move(texts)}};
  return read_texts(Parameters(list), "documents");
}

}  // namespace

void Truncation::cut(std::vector<int32_t>& text) const {
  if (tokens > 0) tokenizers::cut_text(text, tokens, keeps_start, ends);
}

Truncation read_truncation(const Parameters& p, const TextModel& model) {
  const std::string side = p.text("truncation_side").value_or("right");
  if (side != "left" && side != "right")
    p.fail("truncation_side", "is " + shown(Json(side)) + "; it must be \"left\" or \"right\"");
  const int64_t tokens = p.integer("truncate_prompt_tokens", -1, model.context()).value_or(0);
  if (tokens == 0 && p.find("truncate_prompt_tokens") != nullptr)
    p.fail("truncate_prompt_tokens", "is 0; give the number of tokens to keep, or -1");
  return {.tokens = tokens < 0 ? model.context() : tokens,
          .keeps_start = side == "right",
          .ends = model.facts().two_sided ? tokenizers::text_ends(model.tokenizer())
                                          : tokenizers::TextEnds{}};
}

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
  cut_texts(r, p, model, chat ? "messages" : "input");
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
  add_pairs(r, first, second, p, model, names.second);
  return r;
}

RerankRequest read_rerank(const Parameters& p, const TextModel& model) {
  RerankRequest r{.pairs = read_common(p, model), .documents = read_documents(p)};
  if (const Json* query = p.find("query"); query == nullptr || !query->is_string())
    p.fail("query",
           query == nullptr ? "is missing" : "is " + shown(*query) + "; it must be a string");
  add_pairs(r.pairs, {*p.text("query")}, r.documents, p, model, "documents");
  const int64_t count = std::ssize(r.documents),
                top = p.integer("top_n", 0, int64_t{1} << 31).value_or(0);
  r.top = static_cast<size_t>(top == 0 ? count : std::min(top, count));
  r.returns_documents = p.boolean("return_documents").value_or(true);
  return r;
}

}  // namespace megatron::server
