#include "tokenizers/transformers/token_configuration.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text_parts.h"

namespace megatron::tokenizers {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kMap = "special_tokens_map.json";
constexpr const char* kAdded = "added_tokens.json";
constexpr auto kNames = std::to_array<std::string_view>(
    {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"});

bool is_standard(std::string_view name) { return std::ranges::find(kNames, name) != kNames.end(); }

Json read_object(const std::string& directory, const char* name) {
  const std::string path = (fs::path(directory) / name).string();
  if (directory.empty() || !fs::exists(path)) return nullptr;
  Json json = Json::read(path);
  MG_CHECK(json.is_object(), "{}: expected a JSON object", path);
  return json;
}

void erase(Json& object, std::string_view key) {
  std::erase_if(object.as_object(), [&](const Json::Member& m) { return m.first == key; });
}

bool is_empty(const Json* value) {
  return !value || value->is_null() || (value->is_array() && value->as_array().empty()) ||
         (value->is_object() && value->as_object().empty());
}

// Limit on the names, which are looked up one by one.
void check_names(size_t count) {
  constexpr size_t kMax = 8192;
  MG_CHECK(count <= kMax, "{}: there are {} names in one object; the limit is {}", kConfig, count,
           kMax);
}

ConfiguredToken configured(const AddedToken& token) { return {token, true}; }

}  // namespace

ConfiguredToken read_configured_token(const Json& value, std::string_view where,
                                      std::string_view name) {
  ConfiguredToken result;
  AddedToken& token = result.token;
  if (value.is_string()) {
    token.content = value.as_string();
    token.special = true;
    return result;
  }
  const Json* content = value.is_object() ? value.find("content") : nullptr;
  MG_CHECK(content && content->is_string(),
           R"({}: '{}' is {}; a token is a string or {{"content": string, ...}})", where, name,
           value.dump());
  token.content = content->as_string();
  const auto flag = [&](std::string_view key) {
    const Json* one = value.find(key);
    if (!one || one->is_null()) return false;
    MG_CHECK(one->is_bool(), "{}: '{}' of '{}' is {}; it must be true or false", where, key, name,
             one->dump());
    return one->as_bool();
  };
  token.single_word = flag("single_word");
  token.lstrip = flag("lstrip");
  token.rstrip = flag("rstrip");
  token.special = flag("special");
  token.normalized = flag("normalized");
  result.normalized_is_given = value.contains("normalized");
  return result;
}

TokenConfiguration::TokenConfiguration(const std::string& directory, const Definition* definition)
    : members_(read_object(directory, kConfig)),
      model_config_(read_object(directory, "config.json")) {
  const Json* type = model_config_.is_null() ? nullptr : model_config_.find("model_type");
  exists_ = !members_.is_null() || (type && type->is_string());
  if (members_.is_null()) members_ = Json::Object{};
  if (model_config_.is_null()) model_config_ = Json::Object{};
  if (is_set("additional_special_tokens") && is_empty(members_.find("extra_special_tokens"))) {
    members_.set("extra_special_tokens", member("additional_special_tokens"));
    erase(members_, "additional_special_tokens");
  }
  if (const Json& own = member("model_specific_special_tokens"); own.is_object()) own_names_ = own;
  move_own_names();
  move_extra_names();
  if (const Json* added = members_.find("added_tokens_decoder")) {
    MG_CHECK(added->is_object(), "{}: 'added_tokens_decoder' must be an object", kConfig);
    for (const auto& [key, value] : added->as_object()) {
      const auto id = parse_number<int64_t>(key);
      MG_CHECK(id, "{}: '{}' in added_tokens_decoder is not an id", kConfig, key);
      MG_CHECK(value.is_object(),
               "{}: token {} of added_tokens_decoder is {}; it must be an object", kConfig, key,
               value.dump());
      take_added(*id, read_configured_token(value, kConfig, key));
    }
    return;
  }
  read_special_tokens_map(directory);
  read_added_tokens(directory);
  if (!definition) return;
  for (const AddedToken& token : definition->added_tokens) take_added(token.id, configured(token));
}

void TokenConfiguration::take_added(int64_t id, ConfiguredToken token) {
  token.token.id = id;
  by_content_.insert_or_assign(token.token.content, token);
  added_.insert_or_assign(id, std::move(token));
}

// Members "..._token" that are strings.
void TokenConfiguration::move_own_names() {
  Json::Object& members = members_.as_object();
  check_names(members.size());
  std::erase_if(members, [&](const Json::Member& m) {
    const bool own = m.first.ends_with("_token") && !is_standard(m.first) && m.second.is_string();
    if (own) own_names_.set(m.first, m.second);
    return own;
  });
}

// extra_special_tokens that are an object: names and their tokens.
void TokenConfiguration::move_extra_names() {
  if (const Json* extra = members_.find("extra_special_tokens"); extra && extra->is_object()) {
    check_names(extra->as_object().size());
    for (const auto& [name, value] : extra->as_object()) own_names_.set(name, value);
    erase(members_, "extra_special_tokens");
  }
}

void TokenConfiguration::read_special_tokens_map(const std::string& directory) {
  const Json map = read_object(directory, kMap);
  if (map.is_null()) return;
  check_names(map.as_object().size());
  for (const auto& [key, value] : map.as_object()) {
    if (value.is_object() && key != "extra_special_tokens") {
      Json token = value;
      token.set("special", true);
      members_.set(key, std::move(token));
    } else if (key == "extra_special_tokens" && value.is_array()) {
      Json::Array tokens;
      if (const Json& before = member(key); before.is_array()) tokens = before.as_array();
      std::set<std::string> known;
      for (const Json& token : tokens) known.insert(token.dump());
      for (Json token : value.as_array()) {
        if (token.is_object()) token.set("special", true);
        if (known.insert(token.dump()).second) tokens.push_back(std::move(token));
      }
      members_.set(key, std::move(tokens));
    } else {
      members_.set(key, value);
    }
  }
  move_extra_names();
}

void TokenConfiguration::read_added_tokens(const std::string& directory) {
  const Json file = read_object(directory, kAdded);
  if (file.is_null()) return;
  std::set<std::string, std::less<>> special;  // objects in tokenizer_config.json do not count
  const auto take = [&](const Json& value, std::string_view name) {
    if (!value.is_null() && !(value.is_object() && value.contains("__type")))
      special.insert(read_configured_token(value, kConfig, name).token.content);
  };
  for (const std::string_view name : kNames) take(member(name), name);
  if (const Json& extra = member("extra_special_tokens"); extra.is_array())
    for (const Json& value : extra.as_array()) take(value, "extra_special_tokens");
  for (const auto& [content, id] : file.as_object()) {
    MG_CHECK(id.is_integer(), "{}: '{}' has the id {}; it must be an integer", kAdded, content,
             id.dump());
    const bool is_special = special.contains(content);
    take_added(id.as_integer(),
               configured({.content = content, .normalized = !is_special, .special = is_special}));
  }
}

const Json& TokenConfiguration::member(std::string_view key) const {
  static const Json kNull;
  const Json* found = members_.find(key);
  return found ? *found : kNull;
}

void TokenConfiguration::set_default(std::string_view key, Json value) {
  if (!is_set(key)) members_.set(key, std::move(value));
}

std::vector<TokenConfiguration::Named> TokenConfiguration::named_tokens() const {
  std::vector<Named> named;
  const auto put = [&](std::string_view name, const Json& value) {
    ConfiguredToken token = read_configured_token(value, kConfig, name);
    const auto known = by_content_.find(token.token.content);
    if (is_standard(name) && known != by_content_.end()) token = known->second;
    const auto before = std::ranges::find(named, name, &Named::name);
    if (before != named.end()) return void(before->token = std::move(token));
    named.push_back({std::string(name), std::move(token)});
  };
  for (const std::string_view name : kNames)
    if (const Json& value = member(name); !value.is_null()) put(name, value);
  for (const auto& [name, value] : members_.as_object()) {
    const bool is_token = value.is_string() || (value.is_object() && value.contains("content"));
    if (name.ends_with("_token") && !is_standard(name) && is_token) put(name, value);
  }
  for (const auto& [name, value] : own_names_.as_object()) put(name, value);
  return named;
}

std::vector<ConfiguredToken> TokenConfiguration::list(std::string_view key) const {
  const Json& list = member(key);
  std::vector<ConfiguredToken> tokens;
  if (list.is_null()) return tokens;
  MG_CHECK(list.is_array(), "{}: '{}' must be a list of tokens", kConfig, key);
  for (const Json& one : list.as_array()) {
    ConfiguredToken token = read_configured_token(one, kConfig, key);
    if (one.is_object() && !one.contains("__type")) token.token.special = true;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<ConfiguredToken> TokenConfiguration::extra_tokens(
    const std::vector<ConfiguredToken>& pieces) const {
  if (is_set("extra_special_tokens")) return list("extra_special_tokens");
  return pieces.empty() ? list("additional_special_tokens") : pieces;
}

}  // namespace megatron::tokenizers
