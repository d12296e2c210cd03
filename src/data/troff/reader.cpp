#include "data/troff/reader.h"

#include <fmt/core.h>

#include <algorithm>

namespace megatron::data::troff {
namespace {

constexpr int kMaxDepth = 24;

// Cuts a comment, \" or \#, unless its backslash is itself escaped.
std::string_view without_comment(std::string_view line, bool& cut) {
  for (size_t i = 0; i + 1 < line.size(); ++i) {
    if (line[i] != '\\') continue;
    if (line[i + 1] == '"' || line[i + 1] == '#') {
      cut = true;
      return line.substr(0, i);
    }
    ++i;
  }
  return line;
}

bool continues(std::string_view line) {
  const size_t end = line.find_last_not_of('\\');
  return (line.size() - (end == line.npos ? 0 : end + 1)) % 2 == 1;
}

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text;
}

std::string take_word(std::string_view& text) {
  text = trimmed(text);
  const size_t end = std::min(text.find_first_of(" \t"), text.size());
  const std::string word(text.substr(0, end));
  text.remove_prefix(end);
  return word;
}

int count(std::string_view text, std::string_view what) {
  int found = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + what.size()))
    ++found;
  return found;
}

std::string without(std::string text, std::string_view what) {
  for (size_t at; (at = text.find(what)) != text.npos;) text.erase(at, what.size());
  return text;
}

}  // namespace

std::vector<std::string> split_arguments(std::string_view text) {
  std::vector<std::string> arguments;
  size_t i = 0;
  while ((i = text.find_first_not_of(" \t", i)) != text.npos) {
    std::string word;
    if (text[i] == '"') {
      for (++i; i < text.size(); ++i) {
        if (text[i] == '"' && !(i + 1 < text.size() && text[i + 1] == '"')) break;
        if (text[i] == '"') ++i;
        word += text[i];
      }
      i = std::min(i + 1, text.size());
    } else {
      for (; i < text.size() && text[i] != ' ' && text[i] != '\t'; ++i) {
        word += text[i];
        if (text[i] == '\\' && i + 1 < text.size()) word += text[++i];
      }
    }
    arguments.push_back(std::move(word));
  }
  return arguments;
}

void Reader::run(const std::vector<std::string>& lines, Handler& handler) {
  Cursor cursor{lines};
  std::string line;
  while (next_line(cursor, line)) process(line, cursor, handler);
}

bool Reader::next_line(Cursor& cursor, std::string& line) {
  line.clear();
  while (cursor.at < cursor.lines.size()) {
    bool cut = false;
    const std::string_view part = without_comment(cursor.lines[cursor.at++], cut);
    budget_ -= static_cast<int64_t>(part.size()) + 1;
    if (budget_ < 0) return false;
    line += part;
    if (cut && line.find_first_not_of(" \t") ==
                   line.npos) {  // a line that is only a comment leaves nothing
      line.clear();
      continue;
    }
    if (cut || !continues(line)) return true;
    line.pop_back();
  }
  return !line.empty();
}

void Reader::process(std::string_view line, Cursor& cursor, Handler& handler) {
  if (!line.empty() && (line[0] == '.' || line[0] == '\''))
    return control(line.substr(1), cursor, handler);
  std::string text = interpolate(line);
  if (text.find("\\}") != text.npos || text.find("\\{") != text.npos) {
    text = without(without(std::move(text), "\\}"), "\\{");
    if (text.find_first_not_of(" \t") == text.npos) return;
  }
  handler.text(expand(text));
}

void Reader::control(std::string_view line, Cursor& cursor, Handler& handler) {
  std::string_view rest = trimmed(line);
  if (rest.starts_with("\\}")) return process(fmt::format(".{}", rest.substr(2)), cursor, handler);
  if (rest.starts_with("\\\"")) return;
  std::string name = take_word(rest);
  if (name.empty()) return;
  // A conditional's body may follow the name without a space.
  for (const std::string_view prefix : {"if", "ie", "el"}) {
    if (name.size() > 2 && name.starts_with(prefix) && (name[2] == '\\' || name[2] == '!')) {
      const std::string joined = name.substr(2) + std::string(rest);
      return conditional(std::string(prefix), joined, cursor, handler);
    }
  }
  if (name == "if" || name == "ie" || name == "el") return conditional(name, rest, cursor, handler);
  name = without(std::move(name), "\\}");
  if (define(name, rest, cursor)) return;
  const std::string text = without(interpolate(rest), "\\}");
  if (name == "TS") {
    std::vector<std::string> lines;
    skip_until(cursor, "TE", &lines);
    for (std::string& row : lines) row = interpolate(row);
    return handler.table(lines);
  }
  std::vector<std::string> arguments = split_arguments(text);
  if (const auto macro = macros_.find(name); macro != macros_.end()) {
    const auto body = macro->second;
    return call_macro(body, arguments, handler);
  }
  for (std::string& argument : arguments) argument = expand(argument);
  handler.call(name, arguments);
}

bool Reader::define(const std::string& name, std::string_view rest, Cursor& cursor) {
  if (name == "de" || name == "de1" || name == "am") {
    define_macro(rest, cursor, name == "am");
  } else if (name == "ig") {
    const std::string end = take_word(rest);
    skip_until(cursor, end.empty() ? "." : end, nullptr);
  } else if (name == "ds" || name == "ds1" || name == "as") {
    set_string(rest, name == "as");
  } else if (name == "nr") {
    set_register(rest);
  } else if (name == "tr") {
    set_translation(rest);
  } else if (name == "rm") {
    macros_.erase(take_word(rest));
  } else if (name == "while") {
    if (count(rest, "\\{") > count(rest, "\\}")) skip_until(cursor, "", nullptr);
  } else {
    return false;
  }
  return true;
}

void Reader::skip_until(Cursor& cursor, const std::string& end, std::vector<std::string>* kept) {
  int open = 1;
  while (cursor.at < cursor.lines.size()) {
    const std::string& line = cursor.lines[cursor.at++];
    budget_ -= static_cast<int64_t>(line.size()) + 1;
    if (end.empty()) {
      open += count(line, "\\{") - count(line, "\\}");
      if (open <= 0) return;
      continue;
    }
    if (!line.empty() && (line[0] == '.' || line[0] == '\'')) {
      std::string_view rest = std::string_view(line).substr(1);
      if (take_word(rest) == end) return;
    }
    if (kept != nullptr) kept->push_back(line);
  }
}

void Reader::define_macro(std::string_view rest, Cursor& cursor, bool append) {
  const std::string name = take_word(rest), end = take_word(rest);
  std::vector<std::string> body;
  skip_until(cursor, end.empty() ? "." : end, &body);
  for (std::string& line : body) {  // copy mode: \\ becomes one backslash
    for (size_t at = 0; (at = line.find("\\\\", at)) != line.npos; ++at) line.erase(at, 1);
  }
  auto& macro = macros_[name];
  if (!append) macro.clear();
  macro.insert(macro.end(), body.begin(), body.end());
}

void Reader::call_macro(const std::vector<std::string>& body,
                        const std::vector<std::string>& arguments, Handler& handler) {
  if (depth_ >= kMaxDepth) return;
  ++depth_;
  std::vector<std::string> outer = std::move(arguments_);
  arguments_ = arguments;
  run(body, handler);
  arguments_ = std::move(outer);
  --depth_;
}

void Reader::conditional(const std::string& name, std::string_view rest, Cursor& cursor,
                         Handler& handler) {
  const std::string text = name == "el" ? std::string(rest) : interpolate(rest);
  std::string_view left = text;
  bool holds = true;
  if (name == "el") {
    holds = !else_.empty() && !else_.back();
    if (!else_.empty()) else_.pop_back();
  } else {
    holds = condition(left);
    if (name == "ie") else_.push_back(holds);
    if (else_.size() > 1000) else_.clear();
  }
  left = trimmed(left);
  const int open = count(left, "\\{") - count(left, "\\}");
  if (!holds) {
    if (open > 0) skip_until(cursor, "", nullptr);
    return;
  }
  if (depth_ >= kMaxDepth) return;
  std::string body = without(std::string(left), "\\{");
  if (body.empty() || body == "\\") return;
  ++depth_;
  process(body, cursor, handler);
  --depth_;
}

bool Reader::condition(std::string_view& rest) {
  rest = trimmed(rest);
  bool negated = false;
  while (!rest.empty() && rest.front() == '!') {
    negated = !negated;
    rest.remove_prefix(1);
  }
  if (rest.empty()) return false;
  const char c = rest.front();
  const bool alone =
      rest.size() == 1 || rest[1] == ' ' || rest[1] == '\\' || rest[1] == '.' || rest[1] == '\t';
  if ((c == 'n' || c == 't' || c == 'o' || c == 'e' || c == 'v') && alone) {
    rest.remove_prefix(1);
    return (c == 'n' || c == 'o') != negated;
  }
  if ((c == 'd' || c == 'r' || c == 'c' || c == 'm' || c == 'F' || c == 'S') && rest.size() > 1 &&
      rest[1] == ' ') {
    rest.remove_prefix(1);
    const std::string name = take_word(rest);
    const bool known = c == 'd'   ? macros_.contains(name) || strings_.contains(name)
                       : c == 'r' ? registers_.contains(name)
                                  : c == 'c';
    return known != negated;
  }
  if (std::string_view("0123456789(+-|\\.").find(c) == std::string_view::npos) {  // 'text'text'
    const size_t middle = rest.find(c, 1);
    const size_t end = middle == rest.npos ? rest.npos : rest.find(c, middle + 1);
    if (end == rest.npos) {
      rest = {};
      return false;
    }
    const bool equal = rest.substr(1, middle - 1) == rest.substr(middle + 1, end - middle - 1);
    rest.remove_prefix(end + 1);
    return equal != negated;
  }
  const int64_t value = number(rest);
  return (value > 0) != negated;
}

void Reader::set_register(std::string_view rest) {
  const std::string name = take_word(rest);
  const std::string text = interpolate(trimmed(rest));
  std::string_view left = text;
  const char sign = left.empty() ? ' ' : left.front();
  if (sign == '+' || sign == '-') left.remove_prefix(1);
  const int64_t value = number(left);
  auto& entry = registers_[name];
  entry = sign == '+' ? entry + value : sign == '-' ? entry - value : value;
  entry = std::clamp<int64_t>(entry, -1000000000, 1000000000);
}

void Reader::set_string(std::string_view rest, bool append) {
  const std::string name = take_word(rest);
  rest = trimmed(rest);
  if (!rest.empty() && rest.front() == '"') rest.remove_prefix(1);
  std::string value(rest);
  for (size_t at = 0; (at = value.find("\\\\", at)) != value.npos; ++at) value.erase(at, 1);
  auto& entry = strings_[name];
  if (!append) entry.clear();
  if (entry.size() + value.size() < 4096) entry += value;
}

void Reader::set_translation(std::string_view rest) {
  const std::string text = expand(interpolate(trimmed(rest)));
  const auto next = [&](size_t& at) {
    const size_t begin = at++;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
    return text.substr(begin, at - begin);
  };
  for (size_t at = 0; at < text.size();) {
    const std::string from = next(at), to = at < text.size() ? next(at) : " ";
    if (from == to) translations_.erase(from);
    else translations_[from] = to;
  }
}

}  // namespace megatron::data::troff
