// Messages for people. Messages go to standard error, results to standard output. Implemented with
// spdlog in log.cpp.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace megatron::log {

enum class Level { debug, info, warning, error };

void set_level(Level lowest);
void write(Level level, std::string_view message);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::vformat(format, fmt::make_format_args(args...)));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::vformat(format, fmt::make_format_args(args...)));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::vformat(format, fmt::make_format_args(args...)));
}

}  // namespace megatron::log
