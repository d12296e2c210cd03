#include "plan/figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>

#include "base/progress.h"
#include "base/utf8.h"

namespace megatron::plan {
namespace {

// Formats three digits and a unit, in steps of a thousand; whole numbers below a thousand
// unchanged.
std::string scaled(double value, std::span<const std::string_view> units, std::string_view space) {
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  const bool whole = unit == 0 && value == std::trunc(value);
  const int digits = whole || std::abs(value) >= 99.95 ? 0 : std::abs(value) >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}{}", value, digits, space, units[unit]);
}

}  // namespace

std::string count_text(int64_t count) {
  constexpr std::array<std::string_view, 5> kUnits = {"", "k", "M", "B", "T"};
  return scaled(static_cast<double>(count), kUnits, "");
}

std::string bytes_text(double bytes) {
  constexpr std::array<std::string_view, 7> kUnits = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  return scaled(bytes, kUnits, " ");
}

std::string flops_text(double flops) {
  constexpr std::array<std::string_view, 9> kUnits = {"FLOP",  "kFLOP", "MFLOP", "GFLOP", "TFLOP",
                                                      "PFLOP", "EFLOP", "ZFLOP", "YFLOP"};
  return scaled(flops, kUnits, " ");
}

std::string seconds_text(double seconds) {
  constexpr double kDay = 86400;
  if (!(seconds >= 0)) return kUnknown;
  if (seconds < 0.9995) return fmt::format("{:.{}f} ms", seconds * 1e3, seconds < 0.00995 ? 2 : 0);
  if (seconds < 59.95) return fmt::format("{:.2f} s", seconds);
  if (seconds < 4 * kDay) return format_duration(seconds);
  const double days = std::floor(seconds / kDay);
  if (days >= 1000) return fmt::format("{:.0f} years", std::max(3.0, seconds / (365.25 * kDay)));
  return fmt::format("{:.0f}d{:02.0f}h", days, std::floor((seconds - days * kDay) / 3600));
}

std::string amount_text(int64_t count, const std::string& one, const std::string& plural) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : plural);
}

std::string share_text(double share) {
  if (share >= 9.995) return fmt::format("{:.0f} x", share);
  if (share > 0 && share < 0.0005) return "<0.1%";
  return fmt::format("{:.1f}%", share * 100);
}

std::string text_or_unknown(const std::optional<double>& seconds) {
  return seconds ? seconds_text(*seconds) : kUnknown;
}

size_t columns(const std::string& text) { return static_cast<size_t>(count_characters(text)); }

std::string left(const std::string& text, size_t width) {
  const size_t taken = columns(text);
  return taken < width ? text + std::string(width - taken, ' ') : text;
}

std::string right(const std::string& text, size_t width) {
  const size_t taken = columns(text);
  return taken < width ? std::string(width - taken, ' ') + text : text;
}

}  // namespace megatron::plan
