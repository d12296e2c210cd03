#include "models/adapters/name_pattern.h"

#include <fmt/core.h>

#include <vector>

#include "base/error.h"
#include "base/text_parts.h"
#include "tokenizers/regex/pcre_regex.h"

namespace megatron::models {
namespace {

using tokenizers::PcreRegex;

// Rewrites a pattern of Python's re for PCRE2, where the two differ in syntax. Throws Error for
// what PCRE2 has and Python lacks.
class PythonPattern {
 public:
  PythonPattern(std::string_view text, bool at_start) : text_(text), at_start_(at_start) {}

  std::string rewritten() {
    for (at_ = 0; at_ < text_.size();) {
      if (text_[at_] == '\\') {
        escape();
      } else if (in_class_) {
        inside_class();
      } else if (text_[at_] == '(') {
        group();
      } else if (rest().starts_with("{,")) {
        out_ += "{0,";
        at_ += 2;
      } else {
        copy(1);
        if (out_.back() == '[') begin_class();
      }
    }
    return std::move(out_);
  }

 private:
  std::string_view rest() const { return text_.substr(at_); }
  void copy(size_t size) {
    out_ += text_.substr(at_, size);
    at_ += size;
  }
  [[noreturn]] void refuse(std::string_view reason) const {
    fail("regular expression '{}', character {}: {}", text_, at_, reason);
  }

  void escape() {
    if (rest().size() < 2) refuse("a backslash at the end");
    const char c = rest()[1];
    if (c == 'Z' || c == 'v') {  // other meanings in PCRE2
      out_ += c == 'Z' ? "\\z" : "\\x0b";
      at_ += 2;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const std::string_view digits = rest().substr(2, count);
      if (digits.size() < count ||
          digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos)
        refuse(fmt::format("\\{} needs {} hexadecimal digits", c, count));
      out_ += fmt::format("\\x{{{}}}", digits);
      at_ += 2 + count;
    } else {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (letter && std::string_view("AbBdDsSwWafnrt").find(c) == std::string_view::npos)
        refuse(fmt::format("Python's re has no escape \\{}", c));
      copy(2);
    }
  }

  void begin_class() {
    in_class_ = true;
    if (rest().starts_with('^')) copy(1);
    if (rest().starts_with(']')) copy(1);
  }

  // '[' and '&&' are plain characters in Python's classes.
  void inside_class() {
    if (rest().starts_with(']')) in_class_ = false;
    if (rest().starts_with('[') || rest().starts_with("&&")) out_ += '\\';
    copy(1);
  }

  void group() {
    if (rest().starts_with("(*")) refuse("nothing to repeat");
    if (rest().starts_with("(?")) {
      const std::string_view kind = rest().substr(2);
      constexpr std::string_view kKinds[] = {":", "=", "!", "<=", "<!", "P<", "P=", ">", "#", "("};
      bool known = false;
      for (const std::string_view k : kKinds) known |= kind.starts_with(k);
      if (!known) flags(kind);
    }
    copy(1);
  }

  // (?i:...) anywhere, (?i) at the expression's start only.
  void flags(std::string_view kind) const {
    const size_t end = kind.find_first_not_of("imsx-");
    const char after = end == kind.npos ? '\0' : kind[end];
    if (end == 0 || (after != ':' && after != ')'))
      refuse("only the groups and flags (i, m, s, x) of Python's re are supported");
    if (after == ')' && (at_ > 0 || !at_start_))
      refuse("flags for the whole expression stand at its start; write (?i:...) instead");
  }

  std::string_view text_;
  bool at_start_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

// The expressions that PEFT makes of a pattern, anchored as re.match and re.fullmatch do.
std::string anchored(const std::string& pattern, NamePattern::Use use) {
  switch (use) {
    case NamePattern::Use::whole: return "\\A(?:" + pattern + ")\\z";
    case NamePattern::Use::ending: return "\\A(?:(.*\\.)?(" + pattern + ")$)";
    case NamePattern::Use::layers: return "\\A(?:.*?\\." + pattern + "\\.(\\d+)\\.)";
  }
  MG_ASSERT(false);
}

}  // namespace

NamePattern::NamePattern(std::string text, Use use) : text_(std::move(text)), use_(use) {
  constexpr auto kSyntax = tokenizers::RegexSyntax::perl;
  const std::string pattern = PythonPattern(text_, use == Use::whole).rewritten();
  const PcreRegex alone(pattern, kSyntax);  // its parentheses are balanced
  regex_ = std::make_shared<const PcreRegex>(anchored(pattern, use), kSyntax);
}

bool NamePattern::fits(std::string_view name) const {
  static thread_local tokenizers::PcreScratch scratch;
  tokenizers::Regex::Match found;
  return regex_->find(name, 0, found, scratch);
}

std::optional<int64_t> NamePattern::layer(std::string_view name) const {
  std::vector<tokenizers::Regex::Match> groups;
  if (!regex_->find_groups(name, 0, groups)) return {};
  const auto [begin, end] = groups.at(1);
  const std::optional<int64_t> number =
      begin > end || end > name.size() ? std::nullopt
                                       : parse_number<int64_t>(name.substr(begin, end - begin));
  MG_CHECK(number,
           "layers_pattern has '{}', whose own groups or alternatives hide the number of the layer "
           "in '{}'; write alternatives as (?:a|b)",
           text_, name);
  return number;
}

}  // namespace megatron::models
