#include "server/text_model.h"

#include <ctime>

#include "server/api_error.h"
#include "server/plain_chat.h"

namespace megatron::server {
namespace {

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace

ToolFormat tool_format_of(std::string_view source) {
  if (has(source, "[TOOL_CALLS]")) return ToolFormat::mistral;
  if (has(source, "<tool_call>")) return ToolFormat::hermes;
  if (has(source, "<|python_tag|>") || (has(source, "\"parameters\"") && has(source, "ipython")))
    return ToolFormat::llama;
  return ToolFormat::none;
}

TextModel::TextModel(Parts parts)
    : name_(parts.name),
      parts_(std::make_shared<Parts>(std::move(parts))),
      created_(parts_->created),
      has_chat_template_(!parts_->chat.empty()),
      grammars_(std::make_shared<Grammars>(parts_->tokenizer)) {
  if (!has_chat_template_) {
    parts_->chat.set_template(std::string(kPlainChatTemplate), "of plain chats");
    return;
  }
  const std::string& source = parts_->chat.source(true);
  tool_format_ = tool_format_of(source);
  reasons_ = has(source, "</think>");
  for (const char* token : {"[TOOL_CALLS]", "<|python_tag|>", "<tool_call>", "</tool_call>"}) {
    const std::optional<int32_t> id = tokenizer().token_id(token);
    if (id && tokenizer().is_special(*id)) tool_tokens_.push_back(*id);
  }
}

TextModel TextModel::with_adapter(const std::string& name, const std::string& parent,
                                  std::shared_ptr<const inference::Adapter> adapter) const {
  TextModel other = *this;
  other.name_ = name;
  other.parent_ = parent;
  other.adapter_ = std::move(adapter);
  other.created_ = static_cast<int64_t>(std::time(nullptr));
  return other;
}

std::vector<int32_t> TextModel::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<int32_t> tokens;
  try {
    tokens = tokenizer().encode(text, add_special_tokens);
  } catch (const Error& e) {
    throw invalid_request(std::string("the text cannot be tokenized: ") + e.what(), "prompt");
  }
  if (!tokens.empty()) return tokens;
  const std::optional<int32_t> begin = tokenizer().bos() ? tokenizer().bos() : tokenizer().eod();
  if (!begin)
    throw invalid_request(
        "the prompt is empty, and the tokenizer has no beginning-of-text token; give some text",
        "prompt");
  return {*begin};
}

std::string TextModel::token_bytes(int32_t id) const {
  const tokenizers::Codec& codec = tokenizer().codec();
  if (!codec.contains(id)) return "";
  if (codec.is_special(id)) return tokenizer().token(id);
  std::string bytes;
  if (codec.is_bytewise()) {
    codec.append_bytes(id, bytes);
    return bytes;
  }
  // A first token may lose its leading space; the second of two does not.
  const int32_t twice[] = {id, id};
  const std::string one = codec.decode(std::span(twice, 1), false);
  const std::string two = codec.decode(twice, false);
  bytes = two.size() >= one.size() ? two.substr(one.size()) : one;
  return has(bytes, "\xef\xbf\xbd") ? tokenizer().token(id) : bytes;
}

}  // namespace megatron::server
