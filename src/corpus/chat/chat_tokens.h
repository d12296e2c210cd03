// Converts chats to token ids, and marks the tokens that carry loss: the assistant's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tokenizers/chat/chat_template.h"
#include "tokenizers/tokenizer.h"

namespace megatron::corpus {

// A conversation, or a prompt and its completion.
struct ChatExample {
  Json::Array messages;  // as chat templates read them
  std::optional<Json::Array> tools;
  Json::Object variables;  // other variables of the template
  // Number of the first messages that are a prompt; the rest is its completion. Absent: all answers
  // of the assistant carry loss.
  std::optional<size_t> prompt_messages;
  // Texts without a chat template: a prompt (maybe empty) and its completion.
  std::optional<std::pair<std::string, std::string>> texts;
  std::string place;  // "chats.jsonl:7", for messages
};

struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<float> weights;  // of each token's own loss, 0: none

  int64_t counted() const;  // tokens with loss
};

// How the assistant's tokens were found, for the log.
enum class AnswerRule {
  generation_marks,  // {% generation %} in the template
  prefixes,          // the texts of the first messages, each with and without the answer
  completion,        // everything after the prompt
  messages,          // each message is tokenized by itself
  everything,        // all tokens carry loss
};

// Formats of Megatron-LM's --sft-tokenizer-prompt-format; chat_template is its "default".
enum class PromptFormat { nemotron_h_aligned, nemotron_nano_v2, identity, chat_template };
PromptFormat prompt_format(std::string_view name);

// Const members are thread-safe; borrows the tokenizer and the template.
class ChatTokenizer {
 public:
  ChatTokenizer(const tokenizers::Tokenizer& tokenizer, const tokenizers::ChatTemplate& chat);
  const tokenizers::Tokenizer& tokenizer() const { return tokenizer_; }

  // With marks in the template: those of the tokens from the first one with the first letter of an
  // answer to the first one with its last letter, as in transformers. Without: the text that a
  // message of the assistant adds to the generation prompt before it. A message may have `loss`
  // (true, false, 0, 1) and `loss_scale` (a factor), which the template does not see. Throws Error
  // naming the place if the template fails, or if the text of the first messages is not the
  // beginning of the whole one.
  ChatTokens tokens(const ChatExample& example) const;
  AnswerRule rule(const ChatExample& example) const;
  // The messages in one of these formats. Answers of the assistant carry loss, without the three
  // tokens that begin them in nemotron_nano_v2; with chat_template, all tokens do. Throws Error
  // naming the place for an answer without text or after none of a user or tool, and if tokens
  // would reach from one message into the next.
  ChatTokens tokens(const ChatExample& conversation, PromptFormat format) const;
  // Throws Error if the tokenizer lacks a special token of the format.
  void check(PromptFormat format) const;
  // All tokens of a text, without loss: texts get the tokenizer's special tokens around them and,
  // if `ends`, its end-of-sequence token; chats have what the template writes.
  std::vector<int32_t> text_tokens(const ChatExample& example, bool ends) const;

 private:
  std::vector<std::pair<int64_t, int64_t>> answers(const tokenizers::Chat& chat,
                                                   const tokenizers::RenderedChat& rendered,
                                                   const ChatExample& example) const;
  ChatTokens completion_of(const tokenizers::Chat& chat, const ChatExample& example) const;
  ChatTokens of_texts(const ChatExample& example) const;
  tokenizers::RenderedChat render(const tokenizers::Chat& chat, const ChatExample& example) const;

  const tokenizers::Tokenizer& tokenizer_;
  const tokenizers::ChatTemplate& template_;
};

// The rule of generation marks: 1 for the tokens of each answer, a range of code points; tokens may
// have been cut off on either side. A last letter that is in no token, or in the first one, means
// all tokens from the first letter on; a first letter in none ends the search.
std::vector<float> answer_mask(std::span<const tokenizers::Range> offsets,
                               std::span<const std::pair<int64_t, int64_t>> answers,
                               std::span<const float> weights = {});

// Returns the lengths to which texts of these lengths must be truncated so that they have at most
// `capacity` tokens in total. Of two texts, one shorter than half of `capacity` stays whole.
std::vector<size_t> lengths_within(size_t capacity, std::vector<size_t> lengths);

// Cuts to the first `length` tokens, or the last ones.
void truncate(ChatTokens& tokens, int64_t length, bool keep_start);

}  // namespace megatron::corpus
