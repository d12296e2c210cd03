#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace megatron {

// Each line of a message in at most so many bytes (at least 100): the middle of its longest words (paths, values)
// gives way to "...", and where it has none, its own middle. Its beginning and its end, which say what is
// wrong and what to change, stay; no UTF-8 sequence is divided.
std::string shortened(const std::string& message, size_t most);

// Whole characters of UTF-8 text in at most `most` bytes, and `mark` where that is not all of it.
std::string cut_short(std::string_view text, size_t most, std::string_view mark = "...");

}  // namespace megatron
