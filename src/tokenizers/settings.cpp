#include "tokenizers/settings.h"

#include "base/error.h"
#include "base/utf8.h"

namespace megatron::tokenizers {
namespace {

const std::string& type_of(const Json& settings) { return settings["type"].as_string(); }

}  // namespace

bool flag(const Json& settings, std::string_view key, bool otherwise) {
  const Json* value = settings.find(key);
  if (!value) return otherwise;
  MG_CHECK(value->is_bool(), "{}: '{}' is {}; it must be true or false", type_of(settings), key,
           value->dump());
  return value->as_bool();
}

const std::string& text_field(const Json& settings, std::string_view key) {
  const Json* value = settings.find(key);
  MG_CHECK(value && value->is_string(), "{}: '{}' is {}; it must be a string", type_of(settings),
           key, value ? value->dump() : "missing");
  return value->as_string();
}

const std::string& character_field(const Json& settings, std::string_view key) {
  const std::string& text = text_field(settings, key);
  MG_CHECK(!text.empty() && text.size() == static_cast<size_t>(character_size(text[0])),
           "{}: '{}' is '{}'; it must be one character", type_of(settings), key, text);
  return text;
}

Pattern pattern_field(const Json& settings) {
  const Json* pattern = settings.find("pattern");
  const Json* plain = pattern && pattern->is_object() ? pattern->find("String") : nullptr;
  const Json* regex = pattern && pattern->is_object() ? pattern->find("Regex") : nullptr;
  const Json* text = plain ? plain : regex;
  MG_CHECK(text && text->is_string() && !(plain && regex),
           R"({}: 'pattern' is {}; it must be {{"String": text}} or {{"Regex": expression}})",
           type_of(settings), pattern ? pattern->dump() : "missing");
  return {.plain = plain && !text->as_string().empty(), .text = text->as_string()};
}

}  // namespace megatron::tokenizers
