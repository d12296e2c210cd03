// Reads fields of the components in tokenizer.json.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace megatron::tokenizers {

// An optional boolean. Throws Error naming the component and the field if it has another type.
bool flag(const Json& settings, std::string_view key, bool otherwise);

// A required text field, and one of exactly one character.
const std::string& text_field(const Json& settings, std::string_view key);
const std::string& character_field(const Json& settings, std::string_view key);

// The field "pattern": {"String": text} or {"Regex": expression}. The text is not empty if `plain`
// is true; an empty String becomes a Regex that matches only the positions between characters.
struct Pattern {
  bool plain;
  std::string text;
};
Pattern pattern_field(const Json& settings);

}  // namespace megatron::tokenizers
