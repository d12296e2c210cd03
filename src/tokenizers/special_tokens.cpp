#include "tokenizers/special_tokens.h"

#include <filesystem>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/error.h"

namespace megatron::tokenizers {
namespace {

using NamedIds = std::vector<std::pair<const char*, std::optional<int32_t>*>>;

// Sets the members "bos_token" ... of the roles that a configuration does not name.
void set_absent_names(const SpecialTokens& tokens, const Codec& codec, Json& config) {
  const std::pair<const char*, std::optional<int32_t>> roles[] = {
      {"bos_token", tokens.bos}, {"eos_token", tokens.eos}, {"pad_token", tokens.pad},
      {"cls_token", tokens.cls}, {"sep_token", tokens.sep}, {"mask_token", tokens.mask}};
  for (const auto& [name, id] : roles) {
    const Json* given = config.find(name);
    if (id && (given == nullptr || given->is_null())) config.set(name, codec.token(*id));
  }
}

Json read_optional(const std::string& directory, const char* name) {
  const std::string path = (std::filesystem::path(directory) / name).string();
  if (directory.empty() || !std::filesystem::exists(path)) return nullptr;
  Json json = Json::read(path);
  MG_CHECK(json.is_object(), "{}: expected a JSON object", path);
  return json;
}

// "eos_token": "</s>" or {"content": "</s>", ...}
void take_names(const Json& file, const std::string& where, const Codec& codec,
                const NamedIds& ids) {
  if (file.is_null()) return;
  for (const auto& [key, id] : ids) {
    const std::string name = std::string(key) + "_token";
    const Json* value = file.find(name);
    if (*id || !value || value->is_null()) continue;
    const std::string& text =
        value->is_object() ? (*value)["content"].as_string() : value->as_string();
    if (text.empty()) continue;
    *id = codec.find(text);
    MG_CHECK(*id, "{}: {} '{}' is not a token of the tokenizer", where, name, text);
  }
}

std::optional<int32_t> configured(const Codec& codec, std::string_view key) {
  const auto* named = codec.named_tokens();
  if (!named) return std::nullopt;
  for (const auto& [name, content] : *named)
    if (name == std::string(key) + "_token" && !content.empty()) return codec.find(content);
  return std::nullopt;
}

bool contains(const Codec& codec, int64_t id) {
  return id >= 0 && id < codec.size() && codec.contains(static_cast<int32_t>(id));
}

// "eos_token_id": 2, or [128001, 128009], of which the first is used. A model's embedding may have
// rows without a token.
void take_ids(const Json& file, const Codec& codec, const NamedIds& ids) {
  if (file.is_null()) return;
  for (const auto& [key, id] : ids) {
    const Json* value = file.find(std::string(key) + "_token_id");
    if (value && value->is_array() && !value->as_array().empty())
      value = &value->as_array().front();
    if (*id || !value || !value->is_integer() || !contains(codec, value->as_integer())) continue;
    *id = static_cast<int32_t>(value->as_integer());
  }
}

// A token of that name counts only if it is special: in a vocabulary learned from text, "<s>" is a
// word.
void take_first(const Codec& codec, std::optional<int32_t>& id,
                std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto found = id ? id : codec.find(name);
    if (found && codec.is_special(*found)) id = found;
  }
}

// Tokens of encoders. A name that the vocabulary lacks is no error: decoders' files may have one
// that nobody uses.
void find_encoder_tokens(const std::string& directory, const Codec& codec, SpecialTokens& tokens) {
  const Json others = read_optional(directory, "special_tokens_map.json");
  const auto find = [&](const char* key, const char* usual) {
    const std::string name = std::string(key) + "_token";
    std::optional<int32_t> id = configured(codec, key);
    for (const Json* file : {&std::as_const(tokens.config), &others}) {
      const Json* value = file->is_null() || codec.named_tokens() ? nullptr : file->find(name);
      if (value && value->is_object()) value = value->find("content");
      if (!id && value && value->is_string()) id = codec.find(value->as_string());
    }
    if (!id) id = codec.role(key);
    take_first(codec, id, {usual});
    return id;
  };
  tokens.cls = find("cls", "[CLS]");
  tokens.sep = find("sep", "[SEP]");
  tokens.mask = find("mask", "[MASK]");
}

}  // namespace

SpecialTokens find_special_tokens(const std::string& directory, const Codec& codec) {
  SpecialTokens tokens;
  const NamedIds ids = {{"bos", &tokens.bos}, {"eos", &tokens.eos}, {"pad", &tokens.pad}};
  tokens.config = read_optional(directory, "tokenizer_config.json");
  if (codec.named_tokens()) {
    for (const auto& [key, id] : ids) *id = configured(codec, key);
  } else {
    take_names(tokens.config, "tokenizer_config.json", codec, ids);
    take_names(read_optional(directory, "special_tokens_map.json"), "special_tokens_map.json",
               codec, ids);
  }
  take_ids(read_optional(directory, "config.json"), codec, ids);
  for (const auto& [key, id] : ids) {
    if (!*id) *id = codec.role(key);
  }
  take_first(codec, tokens.bos, {"<|begin_of_text|>", "<s>", "<bos>", "[BOS]"});
  if (!tokens.eos) {
    take_first(codec, tokens.eod,
               {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "[EOS]"});
    tokens.eos = tokens.eod;
  }
  tokens.eod = codec.role("eod");
  if (!tokens.eod) tokens.eod = tokens.eos;
  if (!tokens.eos) tokens.eos = tokens.eod;
  take_first(codec, tokens.pad, {"<|pad|>", "<pad>", "<|finetune_right_pad_id|>", "[PAD]"});
  find_encoder_tokens(directory, codec, tokens);
  return tokens;
}

Json write_tokenizer_config(const SpecialTokens& tokens, const Codec& codec) {
  if (!tokens.config.is_null()) {
    Json config = tokens.config;
    if (const auto* named = codec.named_tokens()) {
      // special_tokens_map.json, which may differ, is not written. tokenizer.json has all added
      // tokens, but if the configuration lists some, transformers uses no others.
      std::erase_if(config.as_object(),
                    [](const Json::Member& m) { return m.first == "added_tokens_decoder"; });
      for (const auto& [name, content] : *named) {
        const Json* given = config.find(name);
        const Json* text = given && given->is_object() ? given->find("content") : given;
        if (!text || *text != Json(content)) config.set(name, content);
      }
    } else {
      set_absent_names(tokens, codec, config);
    }
    return config;
  }
  Json config{Json::Object{}};
  const std::string name = codec.hugging_face_class();
  if (!name.empty()) config.set("tokenizer_class", name);
  // SentencePiece's default
  if (!name.empty() && codec.role("bos")) config.set("add_bos_token", true);
  config.set("clean_up_tokenization_spaces", false);
  set_absent_names(tokens, codec, config);
  return config;
}

}  // namespace megatron::tokenizers
