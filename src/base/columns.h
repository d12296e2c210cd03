// Text as a terminal shows it: how many columns it takes.
#pragma once

#include <string>
#include <string_view>

namespace megatron {

// Columns of UTF-8 text: two for a wide character (East Asian, emoji), none for a combining one.
int display_columns(std::string_view text);

// The longest beginning of `text` of at most `columns` columns; characters stay whole.
std::string_view cut_columns(std::string_view text, int columns);

// With '?' for control characters, which would move the cursor.
std::string without_controls(std::string_view text);

}  // namespace megatron
