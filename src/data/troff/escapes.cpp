// Escapes and numbers of the troff reader.
#include <fmt/core.h>

#include <algorithm>

#include "data/troff/characters.h"
#include "data/troff/reader.h"

namespace megatron::data::troff {
namespace {

constexpr int kMaxInterpolation = 12;
constexpr size_t kMaxLine = 1 << 16;

// The name after an escape letter: x, (xx or [xxx]. Moves `at` behind it.
std::string take_name(std::string_view text, size_t& at) {
  if (at >= text.size()) return {};
  if (text[at] == '(') {
    const std::string name(text.substr(at + 1, 2));
    at = std::min(at + 3, text.size());
    return name;
  }
  if (text[at] == '[') {  // brackets may nest: \n[a\n[b]]
    int open = 0;
    size_t end = at;
    do {
      open += text[end] == '[' ? 1 : text[end] == ']' ? -1 : 0;
    } while (open > 0 && ++end < text.size());
    const std::string name(text.substr(at + 1, end - at - 1));
    at = std::min(end + 1, text.size());
    return name;
  }
  return std::string(1, text[at++]);
}

// The argument of an escape like \h'...'; any character may delimit it.
std::string_view take_quoted(std::string_view text, size_t& at) {
  if (at >= text.size()) return {};
  const char delimiter = text[at];
  const size_t begin = at + 1, end = std::min(text.find(delimiter, begin), text.size());
  at = std::min(end + 1, text.size());
  return text.substr(std::min(begin, text.size()), end - std::min(begin, text.size()));
}

// \s+1, \s-2, \s10, \s(12, \s'..'
void skip_size(std::string_view text, size_t& at) {
  if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
  if (at < text.size() && (text[at] == '(' || text[at] == '[')) {
    take_name(text, at);
  } else if (at < text.size() && text[at] == '\'') {
    take_quoted(text, at);
  } else if (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    const bool two = text[at] >= '1' && text[at] <= '3' && at + 1 < text.size() &&
                     text[at + 1] >= '0' && text[at + 1] <= '9';
    at += two ? 2 : 1;
  }
}

}  // namespace

int64_t Reader::register_value(const std::string& name) const {
  if (const auto found = registers_.find(name); found != registers_.end()) return found->second;
  if (name == ".$") return static_cast<int64_t>(arguments_.size());
  if (name == ".g") return 1;
  if (name == ".l" || name == ".ll") return 78;
  return 0;
}

std::string Reader::interpolate(std::string_view text, int depth) {
  std::string out;
  for (size_t i = 0; i < text.size() && out.size() < kMaxLine;) {
    if (text[i] != '\\' || i + 1 >= text.size()) {
      out += text[i++];
      continue;
    }
    const char c = text[i + 1];
    size_t at = i + 2;
    if (c == '*') {
      std::string name = take_name(text, at);
      if (depth < kMaxInterpolation) name = interpolate(name, depth + 1);
      const auto found = strings_.find(name.substr(0, name.find(' ')));
      if (found != strings_.end() && depth < kMaxInterpolation)
        out += interpolate(found->second, depth + 1);
    } else if (c == 'n') {
      if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
      const std::string name = take_name(text, at);
      out += std::to_string(
          register_value(depth < kMaxInterpolation ? interpolate(name, depth + 1) : name));
    } else if (c == '$') {
      const std::string name = take_name(text, at);
      if (name == "*" || name == "@") {
        for (size_t k = 0; k < arguments_.size(); ++k) {
          out += k > 0 ? " " : "";
          out += name == "@" ? fmt::format("\"{}\"", arguments_[k]) : arguments_[k];
        }
      } else if (name.size() == 1 && name[0] >= '1' && name[0] <= '9' &&
                 static_cast<size_t>(name[0] - '0') <= arguments_.size()) {
        out += arguments_[static_cast<size_t>(name[0] - '1')];
      }
    } else {
      out += text.substr(i, 2);
    }
    i = at;
    budget_ -= 1 + static_cast<int64_t>(out.size() / 256);
    if (budget_ < 0) break;
  }
  return out;
}

std::string Reader::expand(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '\\' && i + 1 < text.size()) {
      i = expand_one(text, i + 1, out);
    } else {
      if (text[i] != '\\') out += text[i];
      ++i;
    }
  }
  if (translations_.empty()) return out;
  std::string translated;
  for (size_t i = 0; i < out.size();) {
    size_t end = i + 1;
    while (end < out.size() && (static_cast<unsigned char>(out[end]) & 0xc0) == 0x80) ++end;
    const auto found = translations_.find(out.substr(i, end - i));
    translated += found != translations_.end() ? found->second : out.substr(i, end - i);
    i = end;
  }
  return translated;
}

// Expands the escape whose letter stands at `at`; returns where the text goes on.
size_t Reader::expand_one(std::string_view text, size_t at, std::string& out) {
  const char c = text[at++];
  switch (c) {
    case 'e':
    case '\\':
    case 'E': out += '\\'; break;
    case '-': out += '-'; break;
    case '.': out += '.'; break;
    case '\'': out += "´"; break;
    case '`': out += '`'; break;
    case '_': out += '_'; break;
    case ' ':
    case '~':
    case '0': out += kHardSpace; break;
    case '&':
    case ')': out += kZero; break;
    case 'c': out += kJoin; break;
    case 't':
    case 'a': out += '\t'; break;
    case '(':
    case '[': {
      --at;
      const std::string name = take_name(text, at);
      out += glyph(name);
      break;
    }
    case 'C': out += glyph(take_quoted(text, at)); break;
    case 'N': out += glyph("char" + std::string(take_quoted(text, at))); break;
    case 'f':
    case 'F':
    case 'm':
    case 'M':
    case 'k':
    case 'g':
    case 'Y': take_name(text, at); break;
    case '*':
    case 'n':
    case '$': take_name(text, at); break;  // left over when interpolation was cut off
    case 's': skip_size(text, at); break;
    case 'h': {
      const std::string argument(take_quoted(text, at));
      std::string_view left = argument;
      const int64_t columns = number(left);
      for (int64_t i = 0; i < std::min<int64_t>(columns, 20); ++i) out += kHardSpace;
      break;
    }
    case 'o':
    case 'b': {  // overstrike: the first character
      const std::string inner = expand(take_quoted(text, at));
      size_t end = inner.empty() ? 0 : 1;
      while (end < inner.size() && (static_cast<unsigned char>(inner[end]) & 0xc0) == 0x80) ++end;
      out += inner.substr(0, end);
      break;
    }
    case 'w': out += std::to_string(display_width(expand(take_quoted(text, at)))); break;
    case 'v':
    case 'l':
    case 'L':
    case 'D':
    case 'X':
    case 'H':
    case 'S':
    case 'x':
    case 'A':
    case 'B':
    case 'R':
    case 'Z': take_quoted(text, at); break;
    case '|':
    case '^':
    case '%':
    case '/':
    case ',':
    case ':':
    case '!':
    case '?':
    case 'u':
    case 'd':
    case 'r':
    case 'p':
    case 'z':
    case '{':
    case '}': break;
    default: out += c; break;
  }
  return at;
}

int64_t Reader::number(std::string_view& text, int depth) {
  const auto operand = [&]() -> int64_t {
    bool negative = false;
    while (!text.empty() && (text.front() == '-' || text.front() == '+' || text.front() == '|')) {
      negative ^= text.front() == '-';
      text.remove_prefix(1);
    }
    int64_t value = 0;
    if (!text.empty() && text.front() == '(' && depth < kMaxInterpolation) {
      text.remove_prefix(1);
      value = number(text, depth + 1);
      if (!text.empty() && text.front() == ')') text.remove_prefix(1);
    } else if (text.size() > 2 && text[0] == '\\' && text[1] == 'w') {
      size_t at = 2;
      value = display_width(expand(take_quoted(text, at)));
      text.remove_prefix(at);
    } else {
      while (!text.empty() && text.front() >= '0' && text.front() <= '9') {
        value = std::min<int64_t>(value * 10 + (text.front() - '0'), 1000000000);
        text.remove_prefix(1);
      }
      if (!text.empty() && text.front() == '.') {
        text.remove_prefix(1);
        while (!text.empty() && text.front() >= '0' && text.front() <= '9') text.remove_prefix(1);
      }
    }
    if (!text.empty() &&
        std::string_view("inmucpvPs").find(text.front()) != std::string_view::npos) {
      if (text.front() == 'i') value *= 10;  // ten columns an inch
      text.remove_prefix(1);
    }
    return negative ? -value : value;
  };
  int64_t value = operand();
  while (!text.empty()) {
    const std::string_view two = text.substr(0, 2);
    const char c = text.front();
    const bool wide =
        two == "==" || two == ">=" || two == "<=" || two == "<>" || two == ">?" || two == "<?";
    if (!wide && std::string_view("+-*/%<>=&:").find(c) == std::string_view::npos) break;
    text.remove_prefix(wide ? 2 : 1);
    const int64_t right = operand();
    if (two == ">=") value = value >= right;
    else if (two == "<=") value = value <= right;
    else if (two == "<>") value = value != right;
    else if (two == ">?") value = std::max(value, right);
    else if (two == "<?") value = std::min(value, right);
    else if (c == '+') value += right;
    else if (c == '-') value -= right;
    else if (c == '*') value *= right;
    else if (c == '/') value = right == 0 ? 0 : value / right;
    else if (c == '%') value = right == 0 ? 0 : value % right;
    else if (c == '<') value = value < right;
    else if (c == '>') value = value > right;
    else if (c == '=') value = value == right;
    else if (c == '&') value = value > 0 && right > 0;
    else value = value > 0 || right > 0;
    value = std::clamp<int64_t>(value, -1000000000, 1000000000);
  }
  return value;
}

}  // namespace megatron::data::troff
