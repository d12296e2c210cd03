#include "corpus/chat/chat_tokens.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace megatron::corpus {
namespace {

using Span = std::pair<int64_t, int64_t>;  // code points [begin, end)
using tokenizers::Range;

// Keys of a message that say how much its tokens count; templates do not see them.
constexpr const char *kLoss = "loss", *kScale = "loss_scale";

bool is_answer(const Json& message) {
  const Json* role = message.find("role");
  return role != nullptr && role->is_string() && role->as_string() == "assistant";
}

float weight_of(const Json& message, const std::string& place) {
  double weight = 1;
  if (const Json* loss = message.find(kLoss); loss != nullptr && !loss->is_null()) {
    const bool zero_or_one =
        loss->is_integer() && (loss->as_integer() == 0 || loss->as_integer() == 1);
    MG_CHECK(loss->is_bool() || zero_or_one,
             "{}: 'loss' of a message is {}; it is true, false, 0 or 1", place, loss->dump());
    weight = loss->is_bool() ? (loss->as_bool() ? 1 : 0) : loss->as_number();
  }
  if (const Json* scale = message.find(kScale); scale != nullptr && !scale->is_null()) {
    MG_CHECK(scale->is_number() && scale->as_number() >= 0 && scale->as_number() <= 1e6,
             "{}: 'loss_scale' of a message is {}; it is a number from 0 to 1e6", place,
             scale->dump());
    weight *= scale->as_number();
  }
  return static_cast<float>(weight);
}

Json::Array seen_by_template(const Json::Array& messages) {
  Json::Array seen;
  for (const Json& message : messages) {
    Json::Object members;
    for (const Json::Member& member : message.as_object())
      if (member.first != kLoss && member.first != kScale) members.push_back(member);
    seen.emplace_back(std::move(members));
  }
  return seen;
}

// The first token that represents a character.
std::optional<size_t> token_of(std::span<const Range> offsets, int64_t character) {
  for (size_t i = 0; i < offsets.size(); ++i)
    if (offsets[i].begin <= character && character < offsets[i].end) return i;
  return std::nullopt;
}

}  // namespace

int64_t ChatTokens::counted() const {
  return std::ranges::count_if(weights, [](float w) { return w != 0; });
}

ChatTokenizer::ChatTokenizer(const tokenizers::Tokenizer& tokenizer,
                             const tokenizers::ChatTemplate& chat)
    : tokenizer_(tokenizer), template_(chat) {}

AnswerRule ChatTokenizer::rule(const ChatExample& example) const {
  if (example.texts || example.prompt_messages) return AnswerRule::completion;
  return template_.marks_generation(example.tools.has_value()) ? AnswerRule::generation_marks
                                                               : AnswerRule::prefixes;
}

tokenizers::RenderedChat ChatTokenizer::render(const tokenizers::Chat& chat,
                                               const ChatExample& example) const {
  try {
    return template_.render(chat);
  } catch (const Error& error) {
    fail("{}: the chat template cannot render this conversation: {}", example.place, error.what());
  }
}

std::vector<Span> ChatTokenizer::answers(const tokenizers::Chat& chat,
                                         const tokenizers::RenderedChat& rendered,
                                         const ChatExample& example) const {
  if (rule(example) == AnswerRule::generation_marks) return rendered.generation;
  std::vector<Span> spans;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (!is_answer(chat.messages[i])) continue;
    tokenizers::Chat until = chat;
    until.messages.resize(i);
    until.add_generation_prompt = true;
    const std::string prompt = render(until, example).text;
    until.messages.push_back(chat.messages[i]);
    until.add_generation_prompt = false;
    const std::string whole = render(until, example).text;
    MG_CHECK(whole.starts_with(prompt) && rendered.text.starts_with(whole),
             "{}: the chat template has no {{% generation %}} marks, and its text of the first {} "
             "messages is not the beginning of its text of {}, so that the answer in it cannot be "
             "found: add the marks to the template, or leave out what it changes in earlier "
             "messages (such as their thinking)",
             example.place, whole.starts_with(prompt) ? i + 1 : i,
             whole.starts_with(prompt) ? fmt::format("all {}", chat.messages.size())
                                       : fmt::format("the first {}", i + 1));
    spans.emplace_back(count_characters(prompt), count_characters(whole));
  }
  return spans;
}

ChatTokens ChatTokenizer::of_texts(const ChatExample& example) const {
  const auto& [prompt, completion] = *example.texts;
  ChatTokens tokens{.ids = tokenizer_.encode(prompt + completion), .weights = {}};
  const std::vector<int32_t> of_prompt = tokenizer_.encode(prompt);
  const auto differs = std::ranges::mismatch(of_prompt, tokens.ids).in2;
  const auto begin = differs - tokens.ids.begin();
  if (const auto eos = tokenizer_.eos(); eos && (tokens.ids.empty() || tokens.ids.back() != *eos))
    tokens.ids.push_back(*eos);
  tokens.weights.assign(tokens.ids.size(), 1);
  std::fill_n(tokens.weights.begin(), begin, 0.0f);
  return tokens;
}

// Everything behind the tokens that the prompt, with the generation prompt, has in common with the
// whole text.
ChatTokens ChatTokenizer::completion_of(const tokenizers::Chat& chat,
                                        const ChatExample& example) const {
  ChatTokens tokens{.ids = tokenizer_.encode(render(chat, example).text), .weights = {}};
  tokenizers::Chat prompt = chat;
  prompt.messages.resize(*example.prompt_messages);
  prompt.add_generation_prompt = true;
  const std::vector<int32_t> of_prompt = tokenizer_.encode(render(prompt, example).text);
  const auto begin = std::ranges::mismatch(of_prompt, tokens.ids).in2 - tokens.ids.begin();
  tokens.weights.assign(tokens.ids.size(), 1);
  std::fill_n(tokens.weights.begin(), begin, 0.0f);
  return tokens;
}

ChatTokens ChatTokenizer::tokens(const ChatExample& example) const {
  if (example.texts) return of_texts(example);
  tokenizers::Chat chat{.messages = seen_by_template(example.messages),
                        .tools = example.tools,
                        .documents = {},
                        .variables = example.variables};
  if (example.prompt_messages) return completion_of(chat, example);
  const tokenizers::RenderedChat rendered = render(chat, example);
  ChatTokens tokens;
  std::vector<Range> offsets;
  tokenizer_.codec().encode(rendered.text, {}, tokens.ids, &offsets);
  std::vector<float> weights;
  for (const Json& message : example.messages)
    if (is_answer(message)) weights.push_back(weight_of(message, example.place));
  const std::vector<Span> spans = answers(chat, rendered, example);
  const bool weighted = std::ranges::any_of(weights, [](float w) { return w != 1; });
  MG_CHECK(!weighted || spans.size() == weights.size(),
           "{}: messages have 'loss' or 'loss_scale', but the chat template marks {} answers of {} "
           "messages of the assistant: leave these keys out",
           example.place, spans.size(), weights.size());
  tokens.weights = answer_mask(offsets, spans, weighted ? weights : std::vector<float>());
  return tokens;
}

std::vector<int32_t> ChatTokenizer::text_tokens(const ChatExample& example, bool ends) const {
  if (!example.texts) {
    const tokenizers::Chat chat{.messages = seen_by_template(example.messages),
                                .tools = example.tools,
                                .documents = {},
                                .variables = example.variables};
    return tokenizer_.encode(render(chat, example).text);
  }
  std::vector<int32_t> ids = tokenizer_.encode(example.texts->first + example.texts->second, true);
  const auto eos = tokenizer_.eos();
  if (ends && eos && (ids.empty() || ids.back() != *eos)) ids.push_back(*eos);
  return ids;
}

std::vector<float> answer_mask(std::span<const Range> offsets, std::span<const Span> answers,
                               std::span<const float> weights) {
  std::vector<float> mask(offsets.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    const std::optional<size_t> first = token_of(offsets, answers[i].first),
                                last = token_of(offsets, answers[i].second - 1);
    if (!first) break;
    const size_t end = last.value_or(0) > 0 ? *last + 1 : offsets.size();
    for (size_t t = *first; t < end; ++t) mask[t] = weights.empty() ? 1 : weights[i];
  }
  return mask;
}

std::vector<size_t> lengths_within(size_t capacity, std::vector<size_t> lengths) {
  size_t total = 0;
  for (const size_t length : lengths) total += length;
  if (total <= capacity) return lengths;
  const size_t share = capacity / lengths.size();
  if (lengths.size() != 2) return std::vector<size_t>(lengths.size(), share);
  const size_t shorter = lengths[1] < lengths[0] ? 1 : 0;
  lengths[shorter] = std::min(lengths[shorter], share);
  lengths[1 - shorter] = capacity - lengths[shorter];
  return lengths;
}

void truncate(ChatTokens& tokens, int64_t length, bool keep_start) {
  const auto kept = static_cast<size_t>(length);
  if (tokens.ids.size() <= kept) return;
  if (!keep_start) {
    const auto cut = static_cast<std::ptrdiff_t>(tokens.ids.size() - kept);
    tokens.ids.erase(tokens.ids.begin(), tokens.ids.begin() + cut);
    tokens.weights.erase(tokens.weights.begin(), tokens.weights.begin() + cut);
  }
  tokens.ids.resize(kept);
  tokens.weights.resize(kept);
}

}  // namespace megatron::corpus
