// Helper for normalizers that process one character at a time.
#pragma once

#include <optional>
#include <string>

#include "base/utf8.h"
#include "tokenizers/text.h"

namespace megatron::tokenizers {

// Calls f(character, std::string& replacement) for each character, with an empty replacement. If it
// returns true, the replacement takes the character's place (an empty one drops it). A text without
// replacements is not copied.
template <class F>
void edit_characters(Text& text, F&& f) {
  const std::string_view bytes = text.bytes();
  std::optional<TextEdit> edit;
  std::string replacement;
  for (size_t i = 0; i < bytes.size();) {
    const auto size = static_cast<size_t>(character_size(bytes[i]));
    replacement.clear();
    if (f(size == 1 ? static_cast<char32_t>(bytes[i]) : character_at(bytes, i), replacement)) {
      if (!edit) edit.emplace(text);
      edit->keep(i - edit->position());
      edit->replace(replacement);
    }
    i += size;
  }
  if (edit) edit->keep_all();
}

}  // namespace megatron::tokenizers
