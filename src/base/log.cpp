#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/log_level.h"
#include "base/shorten.h"

namespace megatron::log {
namespace {

// Maximum bytes of a line; with its time and level it stays below 500.
constexpr size_t kLongestError = 480;

spdlog::level::level_enum level_of(Level level) {
  switch (level) {
    case Level::debug: return spdlog::level::debug;
    case Level::info: return spdlog::level::info;
    case Level::warning: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The sink of standard error uses colours only on a terminal, and locks, so that lines of several
// threads are not interleaved.
spdlog::logger make_logger() {
  spdlog::logger logger("megatron", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger.set_pattern("%H:%M:%S %^%l%$ %v");
  logger.set_level(spdlog::level::info);
  logger.flush_on(spdlog::level::trace);
  return logger;
}

spdlog::logger& logger() {
  static spdlog::logger instance = make_logger();
  return instance;
}

}  // namespace

void set_level(Level lowest) { logger().set_level(level_of(lowest)); }

Level lowest_level() {
  Level lowest = Level::debug;
  while (lowest != Level::error && !logger().should_log(level_of(lowest)))
    lowest = static_cast<Level>(static_cast<int>(lowest) + 1);
  return lowest;
}

void write(Level level, std::string_view message) {
  // Clears a progress bar that may be on the line.
  if (logger().should_log(level_of(level)) && ::isatty(STDERR_FILENO) == 1)
    std::fputs("\x1b[K", stderr);
  if (level == Level::error) {
    const std::string text = shortened(std::string(message), kLongestError);
    logger().log(level_of(level), spdlog::string_view_t(text));
  } else {
    logger().log(level_of(level), spdlog::string_view_t(message.data(), message.size()));
  }
}

}  // namespace megatron::log
