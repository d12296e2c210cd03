// Width of text on a terminal, in columns.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// Columns of UTF-8 text: two for a wide character (East Asian, emoji), none for a combining one.
int display_columns(std::string_view text);

// Longest prefix of `text` of at most `columns` columns; characters are not split.
std::string_view cut_columns(std::string_view text, int columns);

// A line for each row of cells, in columns two spaces apart. Columns of which `is_number` is true
// are aligned to the right, others to the left; rows have equally many cells.
std::string aligned_columns(const std::vector<std::vector<std::string>>& rows,
                            const std::vector<bool>& is_number);

// Replaces control characters, which would move the cursor, by '?'.
std::string without_controls(std::string_view text);

}  // namespace megatron
