// Words quoted for a shell.
#pragma once

#include <string>
#include <vector>

namespace megatron {

std::string shell_word(const std::string& word);  // in quotes unless all its characters are plain
std::string shell_line(const std::vector<std::string>& words);

}  // namespace megatron
