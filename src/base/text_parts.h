// Parts of a text between separators, and numbers that are all of a text.
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

namespace megatron {

// Removes the part before the first separator (or all of the text) and that separator from the
// text, and returns the part. `while (!text.empty()) take_until(text, '\n')` yields the lines of a
// text.
inline std::string_view take_until(std::string_view& text, char separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(text.size(), part.size() + 1));
  return part;
}

// All parts, one more than there are separators.
inline std::vector<std::string_view> split_text(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at; (at = text.find(separator)) != text.npos; text.remove_prefix(at + 1))
    parts.push_back(text.substr(0, at));
  parts.push_back(text);
  return parts;
}

// Parses the whole text as a number like std::from_chars. Returns nullopt if it is not a number,
// has trailing characters or does not fit the type.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace megatron
