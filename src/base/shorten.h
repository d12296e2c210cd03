#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace megatron {

// Shortens each line of a message to this number of bytes (at least 100): "..." replaces the middle
// of its longest words (paths, values) or, if it has none, the middle of the line. The beginning
// and the end, which say what is wrong and what to change, are kept; UTF-8 sequences are not split.
std::string shortened(const std::string& message, size_t most);

// Prefix of UTF-8 text with at most `most` bytes and whole characters, followed by `mark` if the
// text is longer.
std::string cut_short(std::string_view text, size_t most, std::string_view mark = "...");

}  // namespace megatron
