// Properties of the served model, besides its weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "inference/adapter.h"
#include "inference/request.h"
#include "models/facts.h"
#include "server/grammars.h"
#include "tokenizers/chat/chat_template.h"
#include "tokenizers/tokenizer.h"

namespace megatron::server {

// Format in which a model writes tool calls, determined from its chat template.
enum class ToolFormat {
  none,
  hermes,   // <tool_call>{"name": ..., "arguments": {...}}</tool_call>
  llama,    // {"name": ..., "parameters": {...}}, optionally after <|python_tag|>
  mistral,  // [TOOL_CALLS][{"name": ..., "arguments": {...}}]
};

// Const members may be called by many threads at once.
class TextModel {
 public:
  struct Parts {
    std::string name;
    tokenizers::Tokenizer tokenizer;
    tokenizers::ChatTemplate chat = {};
    std::vector<int32_t> end_tokens = {};                   // tokens that end a text
    int64_t context = 0;                                    // most tokens of prompt and text
    int64_t created = 0;                                    // seconds since 1970
    models::ModelFacts facts = {};                          // by default of a language model
    inference::Pooling pooling = inference::Pooling::mean;  // of embeddings, if none is asked for
  };
  explicit TextModel(Parts parts);
  // The same model, with an adapter, under another name.
  TextModel with_adapter(const std::string& name, const std::string& parent,
                         std::shared_ptr<const inference::Adapter> adapter) const;

  const std::string& name() const { return name_; }
  const std::string& parent() const { return parent_; }  // with an adapter: its base model's name
  // Null: the model itself.
  const std::shared_ptr<const inference::Adapter>& adapter() const { return adapter_; }
  const tokenizers::Tokenizer& tokenizer() const { return parts_->tokenizer; }
  const std::vector<int32_t>& end_tokens() const { return parts_->end_tokens; }
  int64_t vocabulary() const { return parts_->tokenizer.vocabulary_size(); }
  int64_t context() const { return parts_->context; }
  int64_t created() const { return created_; }
  const models::ModelFacts& facts() const { return parts_->facts; }
  inference::Pooling pooling() const { return parts_->pooling; }
  bool scores() const { return parts_->facts.score_labels > 0; }  // it generates no text then
  // An encoder-decoder: its encoder reads prompts, which texts do not continue.
  bool encodes() const { return parts_->facts.encoder_layers > 0; }

  bool has_chat_template() const { return has_chat_template_; }
  // The model's template, or the plain one.
  const tokenizers::ChatTemplate& chat() const { return parts_->chat; }
  ToolFormat tool_format() const { return tool_format_; }
  bool reasons() const { return reasons_; }  // whether its template knows <think>
  // Special tokens that begin a tool call; they are part of the text if tools are given.
  const std::vector<int32_t>& tool_tokens() const { return tool_tokens_; }
  Grammars& grammars() const { return *grammars_; }

  // Returns the tokens of a prompt, at least one: an empty text is encoded as the
  // beginning-of-sequence or the end-of-document token. Throws ApiError.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  // Returns the bytes of a token within a text; they may contain partial characters.
  std::string token_bytes(int32_t id) const;

 private:
  std::string name_, parent_;
  std::shared_ptr<Parts> parts_;  // shared by the models of a base and its adapters
  std::shared_ptr<const inference::Adapter> adapter_;
  int64_t created_;
  bool has_chat_template_;
  ToolFormat tool_format_ = ToolFormat::none;
  bool reasons_ = false;
  std::vector<int32_t> tool_tokens_;
  std::shared_ptr<Grammars> grammars_;
};

// Determines the format from a template's source.
ToolFormat tool_format_of(std::string_view template_source);

}  // namespace megatron::server
