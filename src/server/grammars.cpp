#include "server/grammars.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace megatron::server {
namespace {

constexpr size_t kMostKept = 64;

std::string escaped(const std::string& text) {
  constexpr std::string_view kSyntax = "\\^$.|?*+()[]{}/";
  std::string out;
  for (const char c : text) {
    if (kSyntax.find(c) != kSyntax.npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

Grammars::Grammars(const tokenizers::Tokenizer& tokenizer) {
  try {
    token_bytes_ = std::make_shared<const inference::TokenBytes>(tokenizer);
  } catch (const Error& e) {
    why_not_ = e.what();
  }
}

const std::shared_ptr<const inference::TokenBytes>& Grammars::token_bytes() const {
  MG_CHECK(token_bytes_ != nullptr, "texts of this model cannot be held to a form: {}", why_not_);
  return token_bytes_;
}

template <class F>
SharedGrammar Grammars::kept(const std::string& key, F&& compile) {
  static_cast<void>(token_bytes());
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(kept_, key, &std::pair<std::string, SharedGrammar>::first);
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return found->second;
    }
  }
  SharedGrammar made = compile();
  const std::lock_guard lock(mutex_);
  kept_.emplace_front(key, made);
  if (kept_.size() > kMostKept) kept_.pop_back();
  return made;
}

SharedGrammar Grammars::json_object() {
  return kept("object", [] { return inference::Grammar::from_json_object(); });
}

SharedGrammar Grammars::json_schema(const Json& schema) {
  return kept("schema " + schema.dump(),
              [&] { return inference::Grammar::from_json_schema(schema); });
}

SharedGrammar Grammars::regex(const std::string& pattern) {
  return kept("regex " + pattern, [&] { return inference::Grammar::from_regex(pattern); });
}

SharedGrammar Grammars::choice(const std::vector<std::string>& texts) {
  std::string pattern;
  for (const std::string& text : texts) pattern += (pattern.empty() ? "" : "|") + escaped(text);
  return regex(pattern);
}

Json strict_schema(const Json& schema) {
  if (schema.is_array()) {
    Json::Array all;
    for (const Json& one : schema.as_array()) all.push_back(strict_schema(one));
    return Json(std::move(all));
  }
  if (!schema.is_object()) return schema;
  Json::Object strict;
  const bool is_object_type = schema.contains("properties") ||
                              (schema.contains("type") && schema["type"] == Json("object"));
  for (const auto& [key, value] : schema.as_object()) {
    if (key == "default" || key == "examples" || key == "example" || key == "deprecated" ||
        key == "readOnly" || key == "writeOnly" || key == "title" || key == "description")
      continue;
    if (is_object_type && (key == "required" || key == "additionalProperties")) continue;
    if (key == "properties" || key == "$defs" || key == "definitions") {
      Json::Object named;
      if (!value.is_object()) return schema;
      for (const auto& [name, one] : value.as_object())
        named.emplace_back(name, strict_schema(one));
      strict.emplace_back(key, std::move(named));
    } else if (key == "items" || key == "anyOf") {
      strict.emplace_back(key, strict_schema(value));
    } else {
      strict.emplace_back(key, value);
    }
  }
  if (!is_object_type) return Json(std::move(strict));
  Json whole(std::move(strict));
  if (!whole.contains("type")) whole.set("type", "object");
  if (!whole.contains("properties")) whole.set("properties", Json::Object{});
  Json::Array names;
  for (const auto& [name, one] : whole["properties"].as_object()) names.emplace_back(name);
  whole.set("required", std::move(names));
  whole.set("additionalProperties", false);
  return whole;
}

}  // namespace megatron::server
