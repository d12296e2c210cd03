#include "report/markup.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <utility>

#include "base/json.h"
#include "base/progress.h"
#include "base/utf8.h"

namespace megatron::report {

std::string printable(std::string_view text) {
  std::string valid, result;
  append_lossy(text, true, valid);
  result.reserve(valid.size());
  for (const char c : valid) {
    const bool control = (c >= 0 && c < 0x20 && c != '\t' && c != '\n') || c == 0x7f;
    if (control) append_character(c == 0x7f ? 0x2421 : 0x2400 + static_cast<char32_t>(c), result);
    else result += c;
  }
  return result;
}

std::string html(std::string_view text) {
  std::string result;
  for (const char c : printable(text)) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\'': result += "&#39;"; break;
      default: result += c;
    }
  }
  return result;
}

std::string script_string(std::string_view text) {
  std::string result;
  for (const char c : Json(printable(text)).dump(-1, true)) {
    if (c == '<' || c == '>' || c == '&') {
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      result += c;
    }
  }
  return result;
}

std::string script_numbers(const std::vector<double>& values, int digits) {
  const auto one = [digits](double value) {
    if (!std::isfinite(value)) return std::string("null");
    const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
    return whole ? fmt::format("{}", static_cast<int64_t>(value))
                 : fmt::format("{:.{}g}", value, digits);
  };
  if (std::none_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); }))
    return "null";
  if (values.size() > 1 &&
      std::all_of(values.begin(), values.end(), [&values](double v) { return v == values[0]; }))
    return one(values[0]);
  std::string result = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) result += ',';
    result += one(values[i]);
  }
  return result + "]";
}

std::string grouped(int64_t value) {
  std::string digits = fmt::format("{}", value);
  const size_t begin = value < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > begin + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string count(double value) {
  if (!std::isfinite(value)) return "–";
  constexpr std::array<std::pair<double, std::string_view>, 5> kUnits = {
      {{1e15, "P"}, {1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}}};
  for (const auto& [unit, letter] : kUnits)
    if (value >= unit * 0.9995)
      return fmt::format("{:.{}f}{}", value / unit, value < 10 * unit ? 2 : 1, letter);
  return fmt::format("{:.0f}", value);
}

std::string duration(double seconds) {
  if (!(seconds >= 172800 && seconds < 1e15)) return format_duration(seconds);
  const auto hours = static_cast<int64_t>(seconds / 3600);
  return fmt::format("{}d{:02}h", hours / 24, hours % 24);
}

std::string percent(double share) {
  if (!std::isfinite(share)) return "–";
  return fmt::format("{:.{}f} %", share * 100, std::abs(share) < 0.1 ? 2 : 1);
}

std::string flops(double per_second) {
  if (!std::isfinite(per_second)) return "–";
  constexpr std::array<std::string_view, 5> kUnits = {"MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s",
                                                      "EFLOP/s"};
  double value = per_second / 1e6;
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return fmt::format("{:.3g} {}", value, kUnits[unit]);
}

std::string moment(double seconds_since_1970) {
  if (!(seconds_since_1970 > 0 && seconds_since_1970 < 1e11)) return "–";
  const auto seconds = static_cast<std::time_t>(seconds_since_1970);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace megatron::report
