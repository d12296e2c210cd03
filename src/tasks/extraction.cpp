#include "tasks/extraction.h"

#include "base/error.h"
#include "base/utf8.h"
#include "jinja/unicode.h"
#include "tokenizers/regex/pcre_regex.h"

namespace megatron::tasks {
namespace {

using tokenizers::PcreRegex;
using Groups = std::vector<tokenizers::Regex::Match>;

PcreRegex compiled(std::string_view pattern) {
  return PcreRegex(pattern, tokenizers::RegexSyntax::perl);
}

// Calls f for every match, from left to right.
template <class F>
void for_each_match(const std::string& pattern, std::string_view text, F&& f) {
  const PcreRegex regex = compiled(pattern);
  Groups groups;
  for (size_t at = 0; at <= text.size() && regex.find_groups(text, at, groups);) {
    f(groups);
    at = groups[0].end;
    if (groups[0].begin < at) continue;
    if (at == text.size()) break;
    at += static_cast<size_t>(character_size(text[at]));  // after an empty match
  }
}

std::string without_matches(const std::string& pattern, std::string_view text) {
  std::string out;
  size_t at = 0;
  for_each_match(pattern, text, [&](const Groups& groups) {
    out += text.substr(at, groups[0].begin - at);
    at = groups[0].end;
  });
  return out += text.substr(at);
}

// With one group, that one; with several, the first that is not empty.
std::optional<std::string> chosen(const Groups& groups, std::string_view text) {
  const auto of = [&](const tokenizers::Regex::Match& m) {
    return m.begin == std::string_view::npos ? std::string()
                                             : std::string(text.substr(m.begin, m.end - m.begin));
  };
  if (groups.size() <= 2) return of(groups.back());
  for (size_t g = 1; g < groups.size(); ++g)
    if (std::string found = of(groups[g]); !found.empty()) return found;
  return {};
}

std::string compared(const Task& task, std::string_view text) {
  std::string out(text);
  for (const std::string& pattern : task.regexes_to_ignore) out = without_matches(pattern, out);
  return task.ignore_case ? jinja::to_lower(out) : out;
}

}  // namespace

std::string extracted(const Filter& filter, std::string_view text) {
  const std::string nothing = "[invalid]";
  std::vector<Groups> matches;
  for_each_match(filter.pattern, text, [&](const Groups& groups) { matches.push_back(groups); });
  const int64_t count = std::ssize(matches);
  const int64_t at = filter.group_select < 0 ? count + filter.group_select : filter.group_select;
  if (at < 0 || at >= count) return nothing;
  const auto found = chosen(matches[static_cast<size_t>(at)], text);
  return found ? std::string(jinja::strip_space(*found, true, true)) : nothing;
}

bool is_match(const Task& task, std::string_view answer, std::string_view target) {
  return compared(task, answer) == compared(task, target);
}

void check_patterns(const Task& task) {
  const auto check = [&](const char* field, const std::string& pattern) {
    try {
      compiled(pattern);
    } catch (const Error& e) {
      fail("{}: {} of the task: {}", task.path, field, e.what());
    }
  };
  for (const Filter& filter : task.filters) check("filters", filter.pattern);
  for (const std::string& pattern : task.regexes_to_ignore) check("regexes_to_ignore", pattern);
}

}  // namespace megatron::tasks
