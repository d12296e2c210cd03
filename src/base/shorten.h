#pragma once

#include <cstddef>
#include <string>

namespace megatron {

// Each line of a message in at most so many bytes (at least 100): the middle of its longest words (paths, values)
// gives way to "...", and where it has none, its own middle. Its beginning and its end, which say what is
// wrong and what to change, stay; no UTF-8 sequence is divided.
std::string shortened(const std::string& message, size_t most);

}  // namespace megatron
