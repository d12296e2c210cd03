#include "inference/end_tokens.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/shorten.h"

namespace megatron::inference {
namespace {

constexpr std::string_view kKey = "eos_token_id";

void add(int64_t id, std::vector<int32_t>& tokens) {
  const auto token = static_cast<int32_t>(id);
  if (std::ranges::find(tokens, token) == tokens.end()) tokens.push_back(token);
}

void add_ids(const std::string& name, const Json& value, int64_t vocabulary,
             std::vector<int32_t>& tokens) {
  const Json::Array ids = value.is_array() ? value.as_array() : Json::Array{value};
  for (const Json& id : ids) {
    MG_CHECK(id.is_integer(), "{}: {} is {}; it must be a token id, or a list of token ids", name,
             kKey, shortened(value.dump(), 100));
    if (id.as_integer() >= 0 && id.as_integer() < vocabulary) {
      add(id.as_integer(), tokens);
    } else {
      log::warning(
          "{}: {} {} is not a token of the tokenizer, whose ids are [0, {}); it is ignored", name,
          kKey, id.as_integer(), vocabulary);
    }
  }
}

}  // namespace

std::vector<int32_t> end_tokens(std::span<const NamedConfig> configs,
                                const tokenizers::Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  for (const auto& [name, json] : configs) {
    const Json* const ids = json.is_object() ? json.find(kKey) : nullptr;
    if (ids == nullptr || ids->is_null()) continue;
    add_ids(name, *ids, tokenizer.vocabulary_size(), tokens);
    break;
  }
  for (const auto& end : {tokenizer.eod(), tokenizer.eos()})
    if (end) add(*end, tokens);
  return tokens;
}

std::vector<int32_t> end_tokens(std::initializer_list<std::string> directories,
                                const tokenizers::Tokenizer& tokenizer) {
  std::vector<NamedConfig> configs;
  for (const char* name : {"/generation_config.json", "/config.json"})
    for (const std::string& directory : directories)
      if (const std::string path = directory + name; std::filesystem::exists(path))
        configs.push_back({path, Json::read(path)});
  return end_tokens(configs, tokenizer);
}

}  // namespace megatron::inference
