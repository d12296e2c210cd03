// Fields of the components in tokenizer.json.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace megatron::tokenizers {

// A boolean that may be absent. Throws Error naming the component and the field when it is
// something else.
bool flag(const Json& settings, std::string_view key, bool otherwise);

// A field that must be there, as text, and one of exactly one character.
const std::string& text_field(const Json& settings, std::string_view key);
const std::string& character_field(const Json& settings, std::string_view key);

// The field "pattern": {"String": text} or {"Regex": expression}. The text is not empty where
// `plain` is true; a String that is empty is a Regex that matches nothing but the places between
// characters.
struct Pattern {
  bool plain;
  std::string text;
};
Pattern pattern_field(const Json& settings);

}  // namespace megatron::tokenizers
