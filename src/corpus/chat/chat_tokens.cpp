#include "corpus/chat/chat_tokens.h"

#include <fmt/core.h>

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

// Parts of the formats of Nemotron-H and Nemotron Nano v2, each beginning with a special token.
constexpr std::string_view kSystem = "<SPECIAL_10>System\n", kUser = "<SPECIAL_11>User\n",
                           kAssistant = "<SPECIAL_11>Assistant\n", kEnd = "<SPECIAL_12>\n";
constexpr size_t kSpecial = std::string_view("<SPECIAL_10>").size();
constexpr size_t kAnswerPrefix = 3;  // tokens of kAssistant

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::string without(std::string text, std::string_view part) {
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at))
    text.erase(at, part.size());
  return text;
}

// A message's text in a format. Roles that a format does not know have none.
std::string turn(std::string_view role, const std::string& content, PromptFormat format) {
  if (format == PromptFormat::identity) return content;
  const bool v2 = format == PromptFormat::nemotron_nano_v2;
  if (role == "assistant")
    return v2 ? fmt::format("{}{}\n{}", kAssistant, stripped(content), kEnd)
              : fmt::format("{}\n", stripped(content));
  const std::string text = v2 ? without(without(content, "/think"), "/no_think") : content;
  if (role == "system") return fmt::format("{}{}\n", kSystem, stripped(text));
  if (role != "user") return "";
  return fmt::format("{}{}\n{}", kUser, stripped(text), v2 ? "" : kAssistant);
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

// Everything after the tokens that the prompt, with the generation prompt, has in common with the
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

PromptFormat prompt_format(std::string_view name) {
  if (name == "nemotron-h-aligned") return PromptFormat::nemotron_h_aligned;
  if (name == "nemotron-nano-v2") return PromptFormat::nemotron_nano_v2;
  return name == "identity" ? PromptFormat::identity : PromptFormat::chat_template;
}

void ChatTokenizer::check(PromptFormat format) const {
  const bool v2 = format == PromptFormat::nemotron_nano_v2;
  if (!v2 && format != PromptFormat::nemotron_h_aligned) return;
  for (const std::string_view token :
       {kSystem.substr(0, kSpecial), kUser.substr(0, kSpecial), kEnd.substr(0, kSpecial)})
    MG_CHECK(tokenizer_.token_id(token) || (token == kEnd.substr(0, kSpecial) && !v2),
             "--sft-tokenizer-prompt-format {} writes {}, which the tokenizer has no token for: "
             "give Nemotron's tokenizer, or another format",
             v2 ? "nemotron-nano-v2" : "nemotron-h-aligned", token);
}

ChatTokens ChatTokenizer::tokens(const ChatExample& conversation, PromptFormat format) const {
  if (format == PromptFormat::chat_template) {
    ChatTokens tokens{.ids = text_tokens(conversation, false), .weights = {}};
    tokens.weights.assign(tokens.ids.size(), 1);
    return tokens;
  }
  ChatTokens tokens;
  std::string whole, previous;  // the role of the message before
  for (const Json& message : conversation.messages) {
    const Json* content = message.find("content");
    MG_CHECK(content != nullptr && content->is_string(),
             "{}: --sft writes messages whose 'content' is a text; use "
             "--sft-tokenizer-prompt-format default, or leave --sft out",
             conversation.place);
    const std::string& role = message["role"].as_string();
    const bool answer = is_answer(message);
    MG_CHECK(!answer || (previous != "" && previous != "system" && previous != "assistant"),
             "{}: a message of the assistant follows {}; with --sft it must follow one of the user "
             "or of a tool",
             conversation.place,
             previous.empty() ? std::string("no other") : "one of the " + previous);
    const std::string text = turn(role, content->as_string(), format);
    const std::vector<int32_t> ids = tokenizer_.encode(text);
    const size_t prefix = format == PromptFormat::nemotron_nano_v2 ? kAnswerPrefix : 0;
    MG_CHECK(!answer || (!stripped(content->as_string()).empty() && ids.size() > prefix),
             "{}: a message of the assistant is empty", conversation.place);
    for (size_t i = 0; i < ids.size(); ++i)
      tokens.weights.push_back(answer && i >= prefix ? weight_of(message, conversation.place) : 0);
    tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
    whole += text;
    previous = role;
  }
  MG_CHECK(tokens.ids == tokenizer_.encode(whole),
           "{}: the tokenizer makes other tokens of the whole conversation than of its messages, "
           "so that it is not known which belong to answers: leave --sft out, or use a "
           "--sft-tokenizer-prompt-format with special tokens between messages",
           conversation.place);
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
