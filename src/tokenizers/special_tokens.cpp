#include "tokenizers/special_tokens.h"

#include <filesystem>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/error.h"

namespace megatron::tokenizers {
namespace {

using Ids = std::vector<std::pair<const char*, std::optional<int32_t>*>>;

Json read_optional(const std::string& directory, const char* name) {
  const std::string path = (std::filesystem::path(directory) / name).string();
  if (directory.empty() || !std::filesystem::exists(path)) return nullptr;
  Json json = Json::read(path);
  MG_CHECK(json.is_object(), "{}: a JSON object is wanted", path);
  return json;
}

// "eos_token": "</s>" or {"content": "</s>", ...}
void take_names(const Json& file, const std::string& where, const Vocabulary& vocabulary,
                const Ids& ids) {
  if (file.is_null()) return;
  for (const auto& [key, id] : ids) {
    const std::string name = std::string(key) + "_token";
    const Json* value = file.find(name);
    if (*id || !value || value->is_null()) continue;
    const std::string& text =
        value->is_object() ? (*value)["content"].as_string() : value->as_string();
    if (text.empty()) continue;
    *id = vocabulary.find(text);
    MG_CHECK(*id, "{}: {} '{}' is not in the vocabulary of tokenizer.json", where, name, text);
  }
}

// "eos_token_id": 2, or [128001, 128009], of which the first counts. A model's embedding may have
// rows without a token.
void take_ids(const Json& file, const Vocabulary& vocabulary, const Ids& ids) {
  if (file.is_null()) return;
  for (const auto& [key, id] : ids) {
    const Json* value = file.find(std::string(key) + "_token_id");
    if (value && value->is_array() && !value->as_array().empty())
      value = &value->as_array().front();
    if (*id || !value || !value->is_integer() || !vocabulary.contains(value->as_integer()))
      continue;
    *id = static_cast<int32_t>(value->as_integer());
  }
}

void take_first(const Vocabulary& vocabulary, std::optional<int32_t>& id,
                std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (!id) id = vocabulary.find(name);
  }
}

}  // namespace

SpecialTokens find_special_tokens(const std::string& directory, const Vocabulary& vocabulary) {
  SpecialTokens tokens;
  const Ids ids = {{"bos", &tokens.bos}, {"eos", &tokens.eos}, {"pad", &tokens.pad}};
  tokens.config = read_optional(directory, "tokenizer_config.json");
  take_names(tokens.config, "tokenizer_config.json", vocabulary, ids);
  take_names(read_optional(directory, "special_tokens_map.json"), "special_tokens_map.json",
             vocabulary, ids);
  take_ids(read_optional(directory, "config.json"), vocabulary, ids);
  take_first(vocabulary, tokens.bos, {"<|begin_of_text|>", "<s>", "<bos>"});
  if (!tokens.eos) {
    take_first(vocabulary, tokens.eod,
               {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>"});
    tokens.eos = tokens.eod;
  }
  tokens.eod = tokens.eos;
  take_first(vocabulary, tokens.pad, {"<|pad|>", "<pad>", "<|finetune_right_pad_id|>", "[PAD]"});
  return tokens;
}

Json write_tokenizer_config(const SpecialTokens& tokens, const Vocabulary& vocabulary) {
  if (!tokens.config.is_null()) return tokens.config;
  Json config{Json::Object{{"tokenizer_class", "PreTrainedTokenizerFast"},
                           {"clean_up_tokenization_spaces", false}}};
  if (tokens.bos) config.set("bos_token", vocabulary.text(*tokens.bos));
  if (tokens.eos) config.set("eos_token", vocabulary.text(*tokens.eos));
  if (tokens.pad) config.set("pad_token", vocabulary.text(*tokens.pad));
  return config;
}

}  // namespace megatron::tokenizers
